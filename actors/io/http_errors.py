"""Why a request is refused before anybody looks at what it asks for.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations


class BadRequestError(Exception):
    """What was received is no request; ``status`` is that of the answer."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class TooLargeError(Exception):
    """The body is over the limit."""
