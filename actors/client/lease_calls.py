"""What is asked of a daemon about leases, and what its answers mean. Nothing here waits, and it imports little."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ...protocol.leases.asked_json import LeaseBody, ProcessWish, asked_to_json, target_to_json
from ...protocol.leases.drains import Drain, DrainTarget
from ...protocol.leases.leases_json import (
    LeaseJsonError,
    drain_from_json,
    failure_from_json,
    lease_from_json,
    place_from_json,
    released_from_json,
    snapshot_from_json,
)
from ...protocol.leases.replies import Failure, InLine, LeasesSnapshot, Problem, Released
from ...protocol.leases.values import START_WITHIN, ContainerOwner, Lease, NoOwner, TimeOwner
from .calls import ClientRequest, refusal, understood
from .errors import ClientError, LeaseFailedError
from .reaching import error_in

#: Seconds beyond the wait for devices in which plugins prepare them: each of several calls may take 30 s, and others
#: may be before it in line.
PREPARING: Final = 600.0
_PATH: Final = "/v1/leases"
_DRAINS: Final = "/v1/drains"
#: The bytes that stand for themselves in a path.
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")


def own_process() -> ProcessWish:
    """Return this process as the owner of a lease."""
    return ProcessWish(os.getpid(), os.getpid())


def owner_of(
    *,
    pid: int | None,
    seconds: float | None,
    until_release: bool,
    container: bool,
    start_within: float = START_WITHIN,
) -> ProcessWish | TimeOwner | NoOwner | ContainerOwner:
    """Return who is to own a lease. A container with ``until_release`` can be stopped and started again.

    Raises:
      ValueError: if that is not said in exactly one way.
    """
    if [pid is not None, seconds is not None, until_release or container].count(True) != 1:
        raise ValueError("say who has the devices: give exactly one of pid, seconds, until_release and container")
    if pid is not None:
        return ProcessWish(pid, os.getpid())
    if seconds is not None:
        return TimeOwner(seconds)
    return ContainerOwner(start_within=None if until_release else start_within) if container else NoOwner()


def new_id() -> str:
    """Return a name for a lease that no other has, so that it can be released whatever becomes of the answer."""
    return os.urandom(6).hex()


def is_unknown(error: ClientError) -> bool:
    """Return whether there is no such lease."""
    return isinstance(error, LeaseFailedError) and error.problem is Problem.UNKNOWN


def allocation(asked: LeaseBody, on_place: Callable[[InLine], None] | None = None) -> ClientRequest[Lease]:
    """Ask for a lease; ``on_place`` is called with the place in line, and again when that changes.

    A daemon of before 0.2 knows no places: it answers 400.
    """
    return ClientRequest(
        "POST",
        _PATH if on_place is None else f"{_PATH}?progress",
        lease_from_json,
        _body(asked_to_json(asked)),
        refused,
        judged,
        lambda lease: release(lease.id),
        (lambda _: False) if on_place is None else partial(_note_place, on_place),
    )


def _note_place(on_place: Callable[[InLine], None], line: bytes) -> bool:
    """Tell of the place in a line of the answer; return whether there is one."""
    in_line = understood(place_from_json, line) if error_in(line) is None else None
    if in_line is not None:
        on_place(in_line)
    return in_line is not None


def judged(lease: Lease, uid: int) -> Lease:
    """Return what is taken of a lease from a daemon of user ``uid``: it must not become this user by variables.

    Raises:
      ClientError: if it has what is not taken from a daemon of another user than root and this one.
    """
    if uid in (0, os.geteuid()):
        return lease
    from ...protocol.leases.answers import AnswerError, from_daemon

    try:
        return from_daemon(lease, uid)
    except AnswerError as error:
        raise LeaseFailedError(Failure(Problem.FORBIDDEN, str(error))) from error


def deadline_of(asked: LeaseBody) -> float:
    """Return how many seconds an allocation may take in all."""
    return PREPARING + (asked.wait or 0.0)


def resumption(lease: str, token: str) -> ClientRequest[Lease]:
    """Ask to own a lease by another connection."""
    return ClientRequest("POST", f"{_path_of(lease)}/resume", lease_from_json, _body({"token": token}), refused)


def release(lease: str) -> ClientRequest[Released]:
    """Ask to end a lease."""
    return ClientRequest("DELETE", _path_of(lease), released_from_json, refused=refused)


def renewal(lease: str) -> ClientRequest[Lease]:
    """Ask that the time of a lease begin again."""
    return ClientRequest("POST", f"{_path_of(lease)}/renew", lease_from_json, refused=refused)


def all_leases(prefix: str = "") -> ClientRequest[LeasesSnapshot]:
    """Ask for all leases, or for those whose ids begin with ``prefix``."""
    query = f"?prefix={quoted(prefix)}" if prefix else ""
    return ClientRequest(
        "GET", _PATH + query, lambda content: snapshot_from_json(content, time.time()), refused=refused
    )


def recovery() -> ClientRequest[None]:
    """Say that no leased device is in use."""
    return ClientRequest("POST", f"{_PATH}/recover", lambda _: None, _body({"none_held": True}), refused)


def draining(target: DrainTarget, reason: str = "", until: float | None = None) -> ClientRequest[Drain]:
    """Ask that nothing of a target be given any more; ``until`` is in Unix seconds."""
    body = _body({**target_to_json(target), "reason": reason, "until_unix": until})
    return ClientRequest("POST", _DRAINS, drain_from_json, body, refused)


def undraining(target: DrainTarget) -> ClientRequest[Drain]:
    """Ask that a target be given again; the answer is the drain that has ended."""
    return ClientRequest("POST", f"{_DRAINS}/end", drain_from_json, _body(target_to_json(target)), refused)


def _path_of(lease: str) -> str:
    return f"{_PATH}/{quoted(lease)}"


def quoted(text: str) -> str:
    """Return text as a part of a path or of a query: as ``urllib.parse.quote``, whose module takes long to import."""
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in os.fsencode(text))


def _body(content: object) -> bytes:
    return json.dumps(content).encode("ascii")


def refused(status: int, body: bytes) -> ClientError:
    """Return the error of an answer that is none of success."""
    try:
        return LeaseFailedError(failure_from_json(json.loads(body)))
    except (LeaseJsonError, ValueError, RecursionError):
        return refusal(status, body)
