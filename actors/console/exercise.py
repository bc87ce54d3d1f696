"""``plugind probe --exercise``: a device plugin's lists, the calls of leases, and whether it still serves then.

The calls and the checks of their answers are those of the daemon. What only a kubelet or a container engine would find
is judged here: paths that do not exist, a preference that does not fit, words of health that nobody knows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import attrs
import trio
from grpclib.const import Cardinality
from grpclib.exceptions import GRPCError

from ...protocol.devices.lists import DeviceListError, DeviceListReader
from ...protocol.errors import PluginError
from ...protocol.leases.answers import AnswerError
from ...protocol.leases.values import Answer
from ...protocol.plugins.devices import HEALTHY, UNHEALTHY, Device
from ...protocol.proto.deviceplugin_v1beta1_grpc import DevicePluginStub
from ...protocol.proto.deviceplugin_v1beta1_pb2 import DevicePluginOptions, Empty, ListAndWatchResponse
from ...protocol.text import cut, quoted
from ...protocol.wire.errors import DialError
from ...protocol.wire.outcomes import status_text
from ..devices.calls import LostError, RefusedError, allocated, preferred, started
from ..devices.follower import FIRST_LIST, LIST_AND_WATCH, NO_DEVICES, NO_LIST, ask_for_options
from ..grpc.client.channel import Channel
from ..handlers.goes_away import GoesAwayError
from ..handlers.paced import take_newest
from .findings import Clock, Findings, Verdict

#: Seconds for a second list, which a plugin sends only if something changes.
SECOND_LIST = 1.0
#: Seconds after which the plugin must still serve. Plugins that fail after their registration mostly do so at once.
LIVES = 3.0
#: Seconds for an answer to GetDevicePluginOptions.
_OPTIONS = 10.0
#: Characters of the ids and words that a finding shows.
_SHOWN = 200

#: Connects to the plugin's endpoint; raises :exc:`DialError`.
Connect = Callable[[], Awaitable[Channel]]


async def exercise(found: Findings, connect: Connect) -> None:
    """Follow the lists of a device plugin, make the calls of leases, and find out whether it still serves then."""
    clock = Clock(trio.current_time() + LIVES)
    try:
        channel = await connect()
    except DialError as error:
        found.note("exercise", Verdict.WRONG, error.message, clock.took)
        return
    try:
        async with trio.open_nursery() as nursery:
            lists = _Lists()
            nursery.start_soon(lists.follow, channel)
            devices = await _check_lists(found, lists)
            await _check_calls(found, channel, [device.id for device in devices if device.healthy])
            await trio.sleep(clock.left)
            nursery.cancel_scope.cancel()
    finally:
        channel.close()
    await _check_serving(found, lists, connect, clock)


# --- the lists --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Lists:
    """The lists of one stream."""

    reader: DeviceListReader = attrs.field(factory=DeviceListReader)
    count: int = 0
    #: Why the stream has ended; None while it is open.
    end: str | None = None
    _news: trio.Event = attrs.field(factory=trio.Event)

    async def follow(self, channel: Channel) -> None:
        """Read lists until the stream ends."""
        try:
            request = channel.request(LIST_AND_WATCH, Cardinality.UNARY_STREAM, Empty, ListAndWatchResponse)
            async with request as stream:
                await stream.send_message(Empty(), end=True)
                await take_newest(stream, self._take)
            self.end = "the plugin ended it"
        except GRPCError as error:
            self.end = status_text(error)
        except DeviceListError as error:
            self.end = f"the list of devices is refused: {error}"
        self._news.set()

    def _take(self, message: bytes) -> Iterator[None]:
        yield from self.reader.steps(message)
        self.count += 1
        self._news.set()
        self._news = trio.Event()

    async def wait(self, count: int, seconds: float) -> None:
        """Wait for ``count`` lists, or the end of the stream, for at most ``seconds``."""
        with trio.move_on_after(seconds):
            while self.count < count and self.end is None:
                await self._news.wait()


async def _check_lists(found: Findings, lists: _Lists) -> list[Device]:
    """Wait for two lists, and return the devices of the newest."""
    clock = Clock(trio.current_time() + FIRST_LIST)
    await lists.wait(1, clock.left)
    took = clock.took
    await lists.wait(2, SECOND_LIST)
    newest = lists.reader.newest
    devices = [*newest.devices.devices.values()]
    came = f"{lists.count} lists came" if lists.count > 1 else f"a list came, and no second one in {SECOND_LIST:g} s"
    if not lists.count:
        found.note("ListAndWatch", Verdict.WRONG, lists.end or NO_LIST, took)
    elif not devices:
        found.note("ListAndWatch", Verdict.WRONG, f"{came}: {NO_DEVICES}", took)
    elif newest.warning is not None:
        found.note("ListAndWatch", Verdict.WRONG, newest.warning, took)
    else:
        found.note("ListAndWatch", Verdict.OK, f"{came}; devices: {len(devices)}", took)
    if devices:
        _check_health(found, devices)
    return devices


def _check_health(found: Findings, devices: list[Device]) -> None:
    counts = Counter(device.health for device in devices)
    strange = [device for device in devices if device.health not in (HEALTHY, UNHEALTHY)]
    if strange:
        first = f"{_quoted(strange[0].id)} is {_quoted(strange[0].health)}"
        detail = f"{first}: all words but {HEALTHY} mean unhealthy ({len(strange)} of {len(devices)} devices)"
        found.note("health", Verdict.WARNING, detail)
    else:
        found.note("health", Verdict.OK, ", ".join(f"{count} {word}" for word, count in counts.items()))


# --- the calls of leases ----------------------------------------------------------------------------------------------


async def _check_calls(found: Findings, channel: Channel, ids: list[str]) -> None:
    """Make each call that the plugin's options name, for one device and for all healthy ones."""
    stub = channel.stub(DevicePluginStub)
    try:
        options: DevicePluginOptions = await stub.GetDevicePluginOptions(Empty(), timeout=_OPTIONS)
    except GRPCError as error:
        found.note("options", Verdict.WRONG, status_text(error))
        return
    offered = "offered" if options.get_preferred_allocation_available else "not offered, so not called"
    required = "required" if options.pre_start_required else "not required, so not called"
    found.note("options", Verdict.OK, f"GetPreferredAllocation is {offered}; PreStartContainer is {required}")
    if not ids:
        found.note("Allocate", Verdict.WARNING, "not called: no device is healthy")
        return
    if options.get_preferred_allocation_available:
        await _prefer(found, stub, ids)
    answers = await _allocate(found, stub, ids[:1], pre_start=options.pre_start_required)
    if answers and len(ids) > 1:
        await _allocate(found, stub, ids, pre_start=options.pre_start_required)


async def _prefer(found: Findings, stub: DevicePluginStub, ids: list[str]) -> None:
    step, size, include = "GetPreferredAllocation", min(2, len(ids)), ids[-1]
    try:
        answer = await preferred(stub, ids, [include], size)
    except (RefusedError, LostError) as error:
        found.note(step, Verdict.WRONG, str(error))
        return
    problem = _problem_with(answer, ids, include, size)
    detail = f"{_quoted(', '.join(answer))} for {size} of {len(ids)} with {_quoted(include)}"
    found.note(step, Verdict.WRONG if problem else Verdict.OK, f"{detail}: {problem}" if problem else detail)


def _problem_with(answer: tuple[str, ...], available: list[str], include: str, size: int) -> str | None:
    strange = [device for device in answer if device not in available]
    if strange:
        return f"{_quoted(strange[0])} is not available"
    if len(answer) != size or len(set(answer)) != size:
        return f"these are not {size} different devices"
    return None if include in answer else f"{_quoted(include)} must be included"


async def _allocate(found: Findings, stub: DevicePluginStub, ids: list[str], *, pre_start: bool) -> bool:
    """Call Allocate, and PreStartContainer after it if required; return whether Allocate was answered."""
    clock, whose = Clock(0.0), f"of {_quoted(ids[0])}" if len(ids) == 1 else f"of all {len(ids)}"
    try:
        answer = await allocated(stub, ids)
    except (RefusedError, LostError) as error:
        # A plugin may refuse to give so many devices to one container.
        may = isinstance(error, RefusedError) and not isinstance(error.__cause__, AnswerError) and len(ids) > 1
        found.note("Allocate", Verdict.WARNING if may else Verdict.WRONG, f"{whose}: {error}", clock.took)
        return isinstance(error, RefusedError)
    verdict, detail = _judged(answer)
    found.note("Allocate", verdict, f"{whose}: {detail}", clock.took)
    if not pre_start:
        return True
    clock = Clock(0.0)
    try:
        await started(stub, ids)
    except (RefusedError, LostError) as error:
        found.note("PreStartContainer", Verdict.WRONG, f"{whose}: {error}", clock.took)
    else:
        found.note("PreStartContainer", Verdict.OK, whose, clock.took)
    return True


def _judged(answer: Answer) -> tuple[Verdict, str]:
    """Judge an answer to Allocate that a daemon takes."""
    nodes, mounts = [node.host_path for node in answer.nodes], [mount.host_path for mount in answer.mounts]
    missing = [path for path in (*nodes, *mounts) if not os.path.exists(path)]
    if missing:
        return Verdict.WRONG, f"{_quoted(missing[0])} does not exist, so no container starts with it"
    parts = {
        "nodes": nodes,
        "mounts": mounts,
        "variables": answer.env,
        "annotations": answer.annotations,
        "CDI devices": answer.cdi_devices,
    }
    said = "; ".join(f"{name} {', '.join(part)}" for name, part in parts.items() if part)
    return (
        (Verdict.OK, cut(said, _SHOWN)) if said else (Verdict.WARNING, "the answer is empty: a container gets nothing")
    )


# --- serving after that -----------------------------------------------------------------------------------------------


async def _check_serving(found: Findings, lists: _Lists, connect: Connect, clock: Clock) -> None:
    """Find out whether the stream was open until now, and whether the plugin answers on a new connection."""
    problem = None if lists.end is None else f"the stream of ListAndWatch has ended: {lists.end}"
    try:
        channel = await connect()
        try:
            with trio.fail_after(_OPTIONS):
                await ask_for_options(channel)
        finally:
            channel.close()
    except DialError as error:
        problem = error.message
    except (PluginError, GoesAwayError) as error:
        problem = str(error)
    except trio.TooSlowError:
        problem = f"no answer in {_OPTIONS:g} s"
    detail = problem or f"after {clock.took:.0f} s its stream is open, and it answers on a new connection"
    found.note("serving", Verdict.WRONG if problem else Verdict.OK, detail)


def _quoted(text: str) -> str:
    return quoted(cut(text, _SHOWN))
