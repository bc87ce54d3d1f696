"""Values of options that several commands take.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
from collections.abc import Callable


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return a parser of a number of seconds from ``least`` to ``most``."""

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = least - 1.0
        # A value that is not a number is not between any two.
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} to {most:.10g}")
        return value

    return parsed
