"""How many file descriptors this process may have.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import resource

#: Kept for the clients of the status socket, for inotify, for logs and for what a handler opens.
RESERVE = 256


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, and return it: a daemon needs a descriptor per plugin in conversation."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def most_connections() -> int:
    """Return how many connections to plugins may be open at once under the present limit."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, soft - most_processes() - RESERVE)


def most_processes() -> int:
    """Return how many processes may be watched at once: a descriptor for each, and a quarter of all (fault 39)."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 4
