"""One request to a daemon, and how its answer is read. Nothing here waits.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

from ...protocol.text import escaped
from .errors import ClientError, DaemonError

AnswerT = TypeVar("AnswerT")


def refusal(status: int, body: bytes) -> ClientError:
    """Return the error of an answer that is none of success."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    said = content.get("error") if isinstance(content, dict) else None
    return DaemonError(escaped(said) if isinstance(said, str) else f"the daemon answers {status}", status)


@attrs.frozen
class Call(Generic[AnswerT]):
    """One request, and how its answer is read."""

    method: str
    target: str
    #: Returns what the content of an answer of success says; raises ValueError if it cannot be understood.
    read: Callable[[object], AnswerT]
    body: bytes = b""
    #: Returns the error of any other answer.
    refused: Callable[[int, bytes], ClientError] = refusal

    def answer(self, status: int, body: bytes) -> AnswerT:
        """Return what the daemon says.

        Raises:
          ClientError: if it refuses, or its answer cannot be understood.
        """
        if status not in (200, 201):
            raise self.refused(status, body)
        return understood(self.read, body)


def understood(read: Callable[[object], AnswerT], text: bytes) -> AnswerT:
    """Return what ``read`` makes of an answer, or of a line of a stream.

    Raises:
      DaemonError: if it cannot be understood, or a line ends the stream.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("error"), str):
            return read(content)
    except (ValueError, RecursionError) as error:
        raise DaemonError(f"the daemon's answer cannot be understood: {escaped(str(error))}", 200) from error
    raise DaemonError(escaped(content["error"]), 200)
