"""The rules for a device plugin's call of Register: checks, answers and limits.

A device plugin can announce itself by calling ``v1beta1.Registration/Register`` on ``kubelet.sock`` instead of making a
socket in a root. Only the contents of the call are checked here; the rest is the same for both.
"""

from __future__ import annotations

import collections
import os

import attrs
from grpclib.const import Status

from ..discovery.device_directory import KUBELET_SOCKET, MAX_SOCKET_PATH, TEMPORARY_SOCKET
from ..discovery.watches import LOCK_FILE
from ..messages.discovery import CallAnswered
from ..plugins.devices import DeviceOptions
from ..plugins.info import DEVICE, DEVICE_PLUGIN_VERSION, PluginInfo, wrong_with_resource
from ..plugins.status import Outcome
from ..settings.rules import Rules
from ..text import cut, quoted
from ..values import value

#: Characters of a caller's text that an error repeats.
_SHOWN = 512


class CallRefusedError(Exception):
    """A call of Register is refused. The text is sent to the caller."""

    def __init__(self, code: Status, text: str) -> None:
        super().__init__(text)
        #: The kubelet sends UNKNOWN for all refusals; device plugins ignore the code.
        self.code = code


@value
class RegisterCall:
    """The contents of a device plugin's call, and the process that called."""

    version: str
    endpoint: str
    resource: str
    uid: int
    pid: int
    options: DeviceOptions | None = None


@attrs.frozen
class CallLimits:
    """The limits of the calls of Register; times are in seconds."""

    #: Concurrent calls.
    at_once: int = 64
    #: Concurrent calls of one process.
    per_process: int = 4
    #: From a call until its answer.
    answer: float = 16.0
    #: How long the socket that a call names can be missing.
    socket: float = 10.0
    #: Device plugins that are kept, to report them again after a crash.
    kept: int = 1024


def check_caller(call: RegisterCall, rules: Rules) -> None:
    """Check that the process that calls may register device plugins (fault 40).

    Raises:
      CallRefusedError: if it may not.
    """
    if not rules.trusts(call.uid):
        raise CallRefusedError(Status.PERMISSION_DENIED, f"uid {call.uid} may not register device plugins")


def check_owner(info: PluginInfo, owner: int | None, rules: Rules) -> None:
    """Check that the calling user may register the socket, whose file belongs to ``owner``.

    Otherwise a trusted user could register another user's socket as its own plugin (faults 79 and 80).

    Raises:
      CallRefusedError: if the file is another user's, unless root or the daemon's user calls.
    """
    if not rules.users.is_privileged(info.uid) and owner != info.uid:
        text = f"{info.endpoint} belongs to uid {owner}, so uid {info.uid} may not register it"
        raise CallRefusedError(Status.PERMISSION_DENIED, text)


def check_call(call: RegisterCall, directory: str) -> PluginInfo:
    """Return the info of the device plugin, whose socket lies in ``directory``.

    Raises:
      CallRefusedError: if the version is another one, the name is no extended resource, or the endpoint is not the name
        of a file in ``directory``. The first two texts are the kubelet's.
    """
    if call.version != DEVICE_PLUGIN_VERSION:
        version = quoted(cut(call.version, _SHOWN))
        raise CallRefusedError(
            Status.INVALID_ARGUMENT,
            f"requested API version {version} is not supported by kubelet. Supported version is"
            f' ["{DEVICE_PLUGIN_VERSION}"]',
        )
    if wrong_with_resource(call.resource) is not None:
        raise CallRefusedError(
            Status.INVALID_ARGUMENT, f"the ResourceName {quoted(cut(call.resource, _SHOWN))} is invalid"
        )
    path = os.path.join(directory, call.endpoint)
    if not _is_file_name(call.endpoint, path):
        raise CallRefusedError(
            Status.INVALID_ARGUMENT,
            f"the endpoint {quoted(cut(call.endpoint, _SHOWN))} is not a file name in {directory}",
        )
    return PluginInfo(DEVICE, call.resource, path, (call.version,), call.uid, called=True)


def _is_file_name(endpoint: str, path: str) -> bool:
    """Whether ``endpoint`` is a plain file name that a plugin's socket can have."""
    return (
        endpoint not in _NO_ENDPOINTS
        and endpoint.isprintable()
        and "/" not in endpoint
        and len(os.fsencode(path)) <= MAX_SOCKET_PATH
    )


#: Names that no plugin's socket can have: directories, and plugind's own files.
_NO_ENDPOINTS = frozenset({"", ".", "..", KUBELET_SOCKET, TEMPORARY_SOCKET, LOCK_FILE})


def refusal_of(answer: CallAnswered) -> CallRefusedError | None:
    """Return the error for a caller with this ``answer``; None if its plugin is registered."""
    if answer.error is None:
        return None
    code = _CODES.get(answer.outcome, Status.UNAVAILABLE)
    return CallRefusedError(code, answer.error)


_CODES = {Outcome.REFUSED: Status.INVALID_ARGUMENT, Outcome.TIMED_OUT: Status.DEADLINE_EXCEEDED}


class CallCounter:
    """Counts the calls under way, in all and by process."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._by_process: collections.Counter[int] = collections.Counter()

    def begin(self, pid: int) -> None:
        """Count a call of process ``pid``.

        Raises:
          CallRefusedError: if there are too many.
        """
        if self._by_process.total() >= self._limits.at_once:
            raise CallRefusedError(
                Status.RESOURCE_EXHAUSTED, f"{self._limits.at_once} calls of Register are under way: call again later"
            )
        # Processes of other pid namespaces all have the pid 0 here.
        if pid and self._by_process[pid] >= self._limits.per_process:
            raise CallRefusedError(
                Status.RESOURCE_EXHAUSTED,
                f"{self._limits.per_process} calls of Register of process {pid} are under way: wait for their answers",
            )
        self._by_process[pid] += 1

    def end(self, pid: int) -> None:
        """Count the end of a call of process ``pid``."""
        self._by_process[pid] -= 1
        if not self._by_process[pid]:
            del self._by_process[pid]
