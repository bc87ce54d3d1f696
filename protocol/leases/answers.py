"""What device plugins answer to Allocate: checked, and joined to one; of some plugins only a part is taken.

A plugin is trusted with its devices, but not to be free of mistakes: what it says is handed to container engines,
shells and systemd, and kept in a file. So it is checked here, once, and whoever uses an :class:`Answer` relies on that.

A plugin that somebody else runs than root, the user of the daemon and the asker has a user whom the operator trusts
with a resource, and not with the account of whoever asks for it. A variable such as ``LD_PRELOAD`` or a mount over
``/etc`` would give it that. No list of dangerous names is complete, and a path that is checked may be another one when
the container starts. So nothing is taken but device nodes, and what the operator permits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs

from ..errors import ConfigError
from ..plugins.info import wrong_with_resource
from ..text import cut, quoted
from .values import Answer, Lease, Mount, Node

#: How many variables, mounts, nodes, annotations and CDI names an answer may have, of each.
MAX_ENTRIES: Final = 1024
#: Bytes of one text: Linux gives a program no longer variable.
MAX_TEXT: Final = 128 * 1024 - 1
#: Bytes of a path: Linux opens no longer one.
MAX_PATH: Final = 4095
#: Bytes of all texts of an answer, which is kept for as long as its lease.
MAX_BYTES: Final = 256 * 1024
#: Bytes of the message with an answer, whose entries and permissions have some besides.
MAX_MESSAGE: Final = MAX_BYTES + 128 * 1024
#: The variables that plugind sets itself.
OWN_PREFIX: Final = "PLUGIND_"

#: Characters of a text of a plugin that an error repeats, or of names that are shown.
_SHOWN: Final = 200
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: The syntax of CDI: vendor, class, name of the device.
_CDI_NAME: Final = re.compile(
    r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?"
)
#: The setting that an error names.
SETTING: Final = "leases.permitted"
_KIND: Final = re.compile(r"mounts|cdi|annotations|env=[A-Za-z_]\w*", re.ASCII)


class AnswerError(Exception):
    """An answer is of no use, or answers contradict each other; the text says why."""


# --- one answer -------------------------------------------------------------------------------------------------------


def check_count(containers: int) -> None:
    """Check that a plugin has answered for the one container that it was asked for.

    Raises:
      AnswerError: if it has not; the first text is the kubelet's.
    """
    if containers == 0:
        raise AnswerError("no containers return in allocation response: it is empty")
    if containers > 1:
        raise AnswerError(f"{containers} containers return in allocation response, and one was asked for")


def checked(answer: Answer) -> Answer:
    """Return what a plugin answers for one container, in which nodes, mounts and CDI names are there once.

    Raises:
      AnswerError: if something of it cannot be used.
    """
    _check_size(answer)
    _check_variables(answer.env)
    for key, text in answer.annotations.items():
        _check_pair(key, text, "annotation")
    inside = _Inside()
    for edit in _edits(answer):
        _check_paths(edit)
        inside.put("", edit)
    for name in answer.cdi_devices:
        if not _CDI_NAME.fullmatch(name):
            raise AnswerError(f"{_quoted(name)} is no name of a CDI device, such as vendor.com/gpu=0")
    return Answer(
        dict(answer.env), inside.mounts, inside.nodes, dict(answer.annotations), _once((), answer.cdi_devices)
    )


def _edits(answer: Answer) -> tuple[Mount | Node, ...]:
    return (*answer.mounts, *answer.nodes)


def _check_size(answer: Answer) -> None:
    parts: tuple[tuple[str, int], ...] = (
        ("variables", len(answer.env)),
        ("mounts", len(answer.mounts)),
        ("devices", len(answer.nodes)),
        ("annotations", len(answer.annotations)),
        ("CDI devices", len(answer.cdi_devices)),
    )
    for name, count in parts:
        if count > MAX_ENTRIES:
            raise AnswerError(f"it has more than {MAX_ENTRIES} {name}")
    size = sum(len(text.encode()) for text in _texts(answer))
    if size > MAX_BYTES:
        raise AnswerError(f"its texts have {size} bytes, and {MAX_BYTES} are allowed")


def _texts(answer: Answer) -> Iterable[str]:
    for texts in (answer.env, answer.annotations):
        yield from texts.keys()
        yield from texts.values()
    for edit in _edits(answer):
        yield edit.host_path
        yield edit.container_path
    yield from answer.cdi_devices


def _check_variables(env: Mapping[str, str]) -> None:
    for name, text in env.items():
        _check_pair(name, text, "variable")
        if "=" in name:
            raise AnswerError(f"the name of the variable {_quoted(name)} has a =")
        if name.startswith(OWN_PREFIX):
            raise AnswerError(f"it sets the variable {_quoted(name)}, and {OWN_PREFIX}* are plugind's own")
        if len(name.encode()) + len(text.encode()) >= MAX_TEXT:
            raise AnswerError(f"the variable {_quoted(name)} is longer than {MAX_TEXT} bytes, so no program can get it")


def _check_pair(name: str, text: str, kind: str) -> None:
    if not name:
        raise AnswerError(f"the name of one {kind} is empty")
    if _CONTROL.search(name):
        raise AnswerError(f"the name of the {kind} {_quoted(name)} has a control character")
    if "\0" in text:
        raise AnswerError(f"the value of the {kind} {_quoted(name)} has a NUL")


def _check_paths(edit: Mount | Node) -> None:
    for kind, path in (("host", edit.host_path), ("container", edit.container_path)):
        if not path.startswith("/"):
            raise AnswerError(f"the {kind} path {_quoted(path)} is not absolute")
        if _CONTROL.search(path):
            raise AnswerError(f"the {kind} path {_quoted(path)} has a control character")
        if len(path.encode()) > MAX_PATH:
            raise AnswerError(f"the {kind} path {_quoted(path)} is longer than {MAX_PATH} bytes")
    if isinstance(edit, Node) and not (
        edit.permissions and len(set(edit.permissions) & set("rwm")) == len(edit.permissions)
    ):
        raise AnswerError(
            f"the permissions of {_quoted(edit.host_path)} are {_quoted(edit.permissions)}: they are some of r, w and m"
        )


def _quoted(text: str) -> str:
    return quoted(cut(text, _SHOWN))


# --- several answers --------------------------------------------------------------------------------------------------


def joined(answers: Mapping[str, Answer]) -> Answer:
    """Return one answer of those of all resources of a lease, in their order. Each was checked before.

    Raises:
      AnswerError: if two contradict each other.
    """
    if len(answers) == 1:
        return next(iter(answers.values()))
    env, annotations, inside = _Words(), _Words("the annotation "), _Inside()
    names: tuple[str, ...] = ()
    identities, access = dict[str, str](), dict[str, str]()
    for resource, answer in answers.items():
        env.put(resource, answer.env)
        annotations.put(resource, answer.annotations)
        for edit in _edits(answer):
            inside.put(resource, edit)
        names = _once(names, answer.cdi_devices)
        identities.update(answer.identities)
        access.update(answer.access)
    return Answer(env.texts, inside.mounts, inside.nodes, annotations.texts, names, identities, access)


def _once(before: tuple[str, ...], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*before, *names)))


class _Words:
    """Variables or annotations of several resources."""

    def __init__(self, kind: str = "") -> None:
        self.texts: dict[str, str] = {}
        self._kind = kind
        self._by: dict[str, str] = {}

    def put(self, resource: str, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            if self.texts.setdefault(name, text) != text:
                raise AnswerError(
                    f"{self._by[name]} and {resource} set {self._kind}{cut(name, _SHOWN)} to different values"
                )
            self._by.setdefault(name, resource)


class _Inside:
    """What is to be in a container, by the path inside of it."""

    def __init__(self) -> None:
        self._there: dict[str, tuple[str, Mount | Node]] = {}

    def put(self, resource: str, edit: Mount | Node) -> None:
        by, there = self._there.setdefault(edit.container_path, (resource, edit))
        if there != edit:
            two = f"{by} and {resource} put" if by != resource else "it puts"
            raise AnswerError(f"{two} different things at {_quoted(edit.container_path)}")

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return tuple(edit for _, edit in self._there.values() if isinstance(edit, Mount))

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(edit for _, edit in self._there.values() if isinstance(edit, Node))


# --- what is permitted ------------------------------------------------------------------------------------------------


def check_permits(permits: Collection[str]) -> None:
    """Check how permits are written.

    Raises:
      ConfigError: if one is none.
    """
    for permit in permits:
        resource, _, kind = permit.partition(":")
        if wrong_with_resource(resource) is not None or not _KIND.fullmatch(kind):
            raise ConfigError(
                f"{quoted(cut(permit, _SHOWN))} is no permit: give RESOURCE:env=NAME, RESOURCE:mounts, RESOURCE:cdi or"
                " RESOURCE:annotations"
            )


def permitted(answer: Answer, resource: str, permits: Collection[str]) -> tuple[Answer, tuple[str, ...]]:
    """Return what of an answer is taken, and the names of the variables that are left out.

    Raises:
      AnswerError: if it has mounts, CDI names or annotations that are not permitted: a container without them would not
        be what the plugin has prepared.
    """
    for kind, words in _named(answer).items():
        if f"{resource}:{kind}" not in permits:
            raise AnswerError(f"it names {words}, and {SETTING} does not have {resource}:{kind}")
    env = {name: text for name, text in answer.env.items() if f"{resource}:env={name}" in permits}
    taken = Answer(env, answer.mounts, answer.nodes, answer.annotations, answer.cdi_devices)
    return taken, tuple(name for name in answer.env if name not in env)


def _named(answer: Answer) -> dict[str, str]:
    """Return what an answer has that changes more of a container than its devices, with words for it."""
    has: tuple[tuple[str, str, Any], ...] = (
        ("mounts", "mounts", answer.mounts),
        ("cdi", "CDI devices", answer.cdi_devices),
        ("annotations", "annotations", answer.annotations),
    )
    return {kind: words for kind, words, found in has if found}


def from_daemon(lease: Lease, uid: int) -> Lease:
    """Return what is taken of a lease from a daemon of user ``uid``, who is neither root nor this user.

    Raises:
      AnswerError: if it names more than devices and variables.
    """
    answer = lease.answer or Answer()
    if named := ", ".join(_named(answer).values()):
        raise AnswerError(
            f"the daemon runs as user {uid}, who is neither root nor you, and the lease {lease.id} names {named}, so it"
            " is not used, and is released if it is new: ask as that user, or ask a daemon of root"
        )
    if not answer.env:
        return lease
    words = f"the daemon runs as user {uid}, who is neither root nor you: the variables of its plugins are left out"
    return attrs.evolve(lease, answer=Answer(nodes=answer.nodes), warnings=(*lease.warnings, words))


def left_out(resource: str, names: Collection[str], whose: str) -> str:
    """Return the words for variables that are left out."""
    shown = quoted(cut(", ".join(names), _SHOWN))
    return f"{resource}: variables of a device plugin of {whose} are left out, as {SETTING} does not have them: {shown}"
