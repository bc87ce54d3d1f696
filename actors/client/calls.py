"""One request to a daemon, and how its answer is read. Nothing here waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import attrs

from ...protocol.text import escaped
from ...protocol.version import STATUS_VERSION, difference
from .errors import ClientError, DaemonError
from .reaching import UNKNOWN_HERE, error_in

AnswerT = TypeVar("AnswerT")
#: The status of an answer for which something was made.
_MADE: Final = 201


def refusal(status: int, body: bytes) -> ClientError:
    """Return the error of an answer that is none of success."""
    said = error_in(body)
    return DaemonError(f"the daemon answers {status}" if said is None else escaped(said), status)


@attrs.frozen
class ClientRequest(Generic[AnswerT]):
    """One request, and how its answer is read."""

    method: str
    target: str
    #: Returns what the content of an answer of success says; raises ValueError if it cannot be understood.
    read: Callable[[object], AnswerT]
    body: bytes = b""
    #: Returns the error of any other answer.
    refused: Callable[[int, bytes], ClientError] = refusal
    #: Returns what is taken of the answer of a daemon of this user; raises ClientError if nothing is.
    judge: Callable[[AnswerT, int], AnswerT] = lambda answer, _: answer
    #: Returns what to ask to take back what was made for an answer of which nothing is taken.
    undo: Callable[[AnswerT], ClientRequest[Any]] | None = None
    #: Takes a line of a stream that comes before the answer, and returns whether it is one.
    note: Callable[[bytes], bool] = lambda _: False

    def answer(self, status: int, body: bytes, version: str | None) -> AnswerT:
        """Return what the daemon says, which speaks this ``version`` of the status socket, before it is judged.

        Raises:
          ClientError: if it refuses, or its answer cannot be understood.
        """
        if status not in (200, 201):
            raise self.refusal(status, body, version)
        return understood(self.read, body, version)

    def undoing(self, status: int, answer: AnswerT) -> ClientRequest[Any] | None:
        """Return what to ask after an ``answer`` of which nothing is taken; None if nothing was made for it."""
        return None if self.undo is None or status != _MADE else self.undo(answer)

    def refusal(self, status: int, body: bytes, version: str | None) -> ClientError:
        """Return the error of an answer that is none of success."""
        error = self.refused(status, body)
        # A daemon of another version may not know what is asked.
        if isinstance(error, DaemonError) and status in UNKNOWN_HERE and (other := difference(version)) is not None:
            return DaemonError(f"{error}; {other}", status)
        return error


def understood(read: Callable[[object], AnswerT], text: bytes, version: str | None = str(STATUS_VERSION)) -> AnswerT:
    """Return what ``read`` makes of an answer, or of a line of a stream, of a daemon that says this ``version``.

    Raises:
      DaemonError: if it cannot be understood, or a line ends the stream.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("error"), str):
            return read(content)
    except (ValueError, RecursionError) as error:
        why = "; ".join(said for said in (escaped(str(error)), difference(version)) if said is not None)
        raise DaemonError(f"the daemon's answer cannot be understood: {why}", 200) from error
    raise DaemonError(escaped(content["error"]), 200)
