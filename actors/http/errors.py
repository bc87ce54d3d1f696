"""Why a request is refused before anybody looks at what it asks for."""

from __future__ import annotations


class BadRequestError(Exception):
    """What was received is no request; ``status`` is that of the answer."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


def check_head(length: int, most: int) -> None:
    """Check that the head of a request, which is the request line and the headers, has no more than ``most`` bytes.

    Raises:
      BadRequestError: if it has.
    """
    if length > most:
        raise BadRequestError(f"its head is over {most} bytes", 431)


class TooLargeError(Exception):
    """The body is over the limit."""
