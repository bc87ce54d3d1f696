"""What the endless answers of the status socket have in common: JSON lines, with heartbeats where they are asked for.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import math
from typing import TypeVar

import trio

from ...protocol.text import encodable
from ..io.http_server import Request, Response, problem

T = TypeVar("T")

#: How many rows are written, or changes sent, before other actors have their turn: about a millisecond of work.
PIECE = 50
JSON_LINES = "application/jsonl"
#: The header of a watch that sends an empty line whenever so many seconds pass without a change.
HEARTBEAT = "Heartbeat"
LEAST_HEARTBEAT = 0.02
MOST_HEARTBEAT = 3600.0


def pause_of(request: Request) -> float | Response | None:
    """Return the seconds between heartbeats that a watch asks for; None for no heartbeats, or what is wrong."""
    unknown = request.query.keys() - {"heartbeat"}
    if unknown:
        return problem(400, f"there is no parameter {encodable(min(unknown))}; {request.path} takes heartbeat")
    asked = request.query.get("heartbeat")
    if asked is None:
        return None
    pause = _heartbeat(asked)
    if pause is None:
        allowed = f"it must be seconds from {LEAST_HEARTBEAT:g} to {MOST_HEARTBEAT:g}"
        return problem(400, f"heartbeat is {encodable(asked)!r}: {allowed}")
    return pause


def _heartbeat(asked: str) -> float | None:
    try:
        pause = float(asked)
    except ValueError:
        return None
    return pause if LEAST_HEARTBEAT <= pause <= MOST_HEARTBEAT else None


def heartbeat_headers(pause: float | None) -> tuple[tuple[str, str], ...]:
    """Return the header that says so to the client."""
    return () if pause is None else ((HEARTBEAT, f"{pause:g}"),)


async def next_messages(reader: trio.MemoryReceiveChannel[T], pause: float | None) -> list[T | None]:
    """Return the next messages: None alone after a ``pause`` without any, nothing at the end."""
    messages: list[T | None] = []
    with trio.move_on_after(math.inf if pause is None else pause) as scope:
        try:
            messages.append(await reader.receive())
            while len(messages) < PIECE:
                messages.append(reader.receive_nowait())
        except (trio.WouldBlock, trio.EndOfChannel):
            pass
    return [None] if scope.cancelled_caught else messages
