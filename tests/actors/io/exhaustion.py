"""The descriptors of a process: none left, and none left behind."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


def descriptors() -> set[str]:
    """Return the open descriptors of this process, after what earlier tests left to the garbage collector is closed."""
    gc.collect()
    return set(os.listdir("/proc/self/fd"))


@contextmanager
def leaving_no_descriptor(make: Callable[[], C]) -> Iterator[C]:
    """Close what ``make`` returns, and assert that it leaves no descriptor open."""
    before = descriptors()
    made = make()
    try:
        yield made
    finally:
        made.close()
        assert descriptors() == before


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Make every system call that creates a descriptor fail with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/", os.O_PATH)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
