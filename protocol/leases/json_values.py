"""Values out of JSON that somebody else may have written: each reader raises :exc:`TypeError` or :exc:`KeyError`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..text import encodable
from .values import (
    START_WITHIN,
    Answer,
    ConnectionOwner,
    ContainerOwner,
    Mount,
    Node,
    NoOwner,
    Owner,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
)

if TYPE_CHECKING:
    from ..status.json import Json

T = TypeVar("T")

#: What reading JSON of the wrong form can raise.
WRONG_FORM: Final = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


def words_of(error: Exception) -> str:
    """Return what one of :data:`WRONG_FORM` says."""
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


@contextmanager
def wrong_form_is(error: type[Exception], what: str) -> Iterator[None]:
    """Raise ``error`` with the words ``what`` if the block reads JSON of the wrong form."""
    try:
        yield
    except WRONG_FORM as wrong:
        raise error(f"{what}: {words_of(wrong)}") from wrong


def exactly(kind: type[T], found: object) -> T:
    """Return ``found``, which is to be exactly of this type: True is no number."""
    if type(found) is not kind:
        raise TypeError(f"{found!r} is no {kind.__name__}")
    return found


def exactly_or_none(kind: type[T], found: object) -> T | None:
    """Return ``found``, which is to be of this type or None."""
    return None if found is None else exactly(kind, found)


def number(found: object) -> float:
    """Return a number, which JSON may write without a fraction."""
    return float(found) if type(found) is int else exactly(float, found)


def every(read: Callable[[Any], T], found: Any) -> tuple[T, ...]:
    """Return what ``read`` makes of each element of a list."""
    return tuple(read(element) for element in exactly(list, found))


def texts(found: Any) -> tuple[str, ...]:
    """Return a list of texts."""
    return every(lambda element: exactly(str, element), found)


def text_by_text(found: Any) -> Mapping[str, str]:
    """Return an object of texts."""
    return {key: exactly(str, text) for key, text in exactly(dict, found).items()}


def encodables(found: Iterable[str]) -> list[str]:
    """Return texts as JSON can have them; see :func:`~plugind.protocol.text.encodable`."""
    return [encodable(text) for text in found]


def request_of(content: Any, beside: Any) -> Request:
    """Return what a lease is to give, of which the pool and the labels stand ``beside`` the rest."""
    wanted = exactly(dict, content["resources"])
    return Request(
        wanted=tuple(Wanted(resource, exactly(int, count)) for resource, count in wanted.items()),
        ids=texts(content["ids"]),
        include=texts(content["include"]),
        pool=exactly_or_none(str, beside["pool"]),
        labels=tuple(sorted(text_by_text(beside["labels"]).items())),
        container=exactly(bool, content["container"]),
        ignore_missing=exactly(bool, content["ignore_missing"]),
        stop_on_unhealthy=exactly(bool, content["stop_on_unhealthy"]),
        for_uid=exactly_or_none(int, content.get("for_uid")),
    )


def answer_of(content: Any) -> Answer:
    """Return what plugins have said, of the form that :func:`answer_to_json` gives it."""
    return Answer(
        env=text_by_text(content["env"]),
        mounts=every(_mount_of, content["mounts"]),
        nodes=every(_node_of, content["nodes"]),
        annotations=text_by_text(content["annotations"]),
        cdi_devices=texts(content["cdi_devices"]),
        # An answer of an earlier version, or of a plugin, has none.
        identities=text_by_text(content.get("identities", {})),
        access=text_by_text(content.get("access", {})),
    )


def answer_to_json(answer: Answer) -> dict[str, Json]:
    """Return what :func:`attrs.asdict` would, in a third of the time."""
    return {
        "env": dict(answer.env),
        "mounts": [
            {"host_path": mount.host_path, "container_path": mount.container_path, "read_only": mount.read_only}
            for mount in answer.mounts
        ],
        "nodes": [
            {"host_path": node.host_path, "container_path": node.container_path, "permissions": node.permissions}
            for node in answer.nodes
        ],
        "annotations": dict(answer.annotations),
        "cdi_devices": list(answer.cdi_devices),
        **({"identities": dict(answer.identities)} if answer.identities else {}),
        **({"access": dict(answer.access)} if answer.access else {}),
    }


def _mount_of(content: Any) -> Mount:
    return Mount(
        exactly(str, content["host_path"]), exactly(str, content["container_path"]), exactly(bool, content["read_only"])
    )


def _node_of(content: Any) -> Node:
    return Node(
        exactly(str, content["host_path"]),
        exactly(str, content["container_path"]),
        exactly(str, content["permissions"]),
    )


def owner_of(content: Any, token_hash: str | None = "") -> Owner:
    """Return the owner of a lease; that of a connection has this hash, which is not in its JSON."""
    match content["kind"]:
        case "process":
            return ProcessOwner(_process_of(content))
        case "container":
            # An earlier version says no such time.
            start_within, init = content.get("start_within", START_WITHIN), content["init"]
            return ContainerOwner(
                None if init is None else _process_of(init), None if start_within is None else number(start_within)
            )
        case "time":
            return TimeOwner(number(content["seconds"]), exactly_or_none(int, content["expires_boottime_ns"]))
        case "connection":
            return ConnectionOwner(exactly(str, token_hash))
        case "none":
            return NoOwner()
        case kind:
            raise ValueError(f"its owner is {kind!r}")


def _process_of(content: Any) -> ProcessIdentity:
    return ProcessIdentity(
        exactly(int, content["pid"]), exactly(int, content["start_ticks"]), exactly(str, content["boot_id"])
    )
