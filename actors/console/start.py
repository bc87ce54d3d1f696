"""The first steps of a command, before it opens a descriptor, while any signal still ends it; and its modules."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

#: The signals that request something of a running daemon. If they are not handled, they end a process;
#: the first lines of the command have them wait (``plugind.__main__``).
REQUESTS: Final = (signal.SIGHUP, signal.SIGUSR1)
#: What Trio imports for TLS. A daemon uses none of it, and with OpenSSL it takes a twentieth of the start and 5 MiB.
_FOR_TLS: Final = ("ssl", "hmac")
#: The names of glibc's libraries, by what ``ctypes.util.find_library`` is asked for.
_OF_GLIBC: Final = {"c": "libc.so.6", "pthread": "libpthread.so.0"}


def open_standard_descriptors() -> None:
    """Open /dev/null at each of the descriptors 0 to 2 that is closed, and print to it.

    A socket would get the number otherwise, and whatever is printed would go to its other end. Python has no stream for
    a descriptor that was closed, and a line meant for standard error would go to standard output.
    """
    # Some containers have no /dev/null; then there is nothing else to open.
    with contextlib.suppress(OSError):
        while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(lowest, True)  # noqa: FBT003 - it takes no keyword
        os.close(lowest)
        if sys.stdout is None:
            sys.stdout = os.fdopen(1, "w", closefd=False)
        if sys.stderr is None:
            sys.stderr = os.fdopen(2, "w", closefd=False)


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Import the modules of a process in the block.

    Modules make a hundred thousand objects and little garbage. To examine these objects time and again takes a seventh
    of the start of the daemon, so they are excluded from collections for ever.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def imports_of_daemon() -> Iterator[None]:
    """Import the modules of a daemon in the block, without what none of them uses.

    Each module of TLS is imported once something of it is used. And the C library is not searched for, which runs
    ldconfig twice: for Trio, and for inotify.
    """
    from ctypes import util

    for name in _FOR_TLS:
        _postpone(name)
    search = util.find_library

    def find(name: str) -> str | None:
        return _loaded_of_glibc(name) or search(name)

    util.find_library = find
    try:
        with no_collection():
            yield
    finally:
        util.find_library = search


def _loaded_of_glibc(name: str) -> str | None:
    """Return the file name of a library of glibc; None if this is none, or this process runs with another C library."""
    import ctypes

    file = _OF_GLIBC.get(name)
    if file is not None:
        with contextlib.suppress(OSError):
            ctypes.CDLL(file)
            return file
    return None


def _postpone(name: str) -> None:
    """Have a module imported once something of it is used."""
    from importlib.util import find_spec

    if name not in sys.modules and (spec := find_spec(name)) is not None:
        postponed = sys.modules[name] = _Postponed(name)
        postponed.__spec__, postponed.__loader__, postponed.__file__ = spec, spec.loader, spec.origin


class _Postponed(ModuleType):
    """Stands for a module that is not imported yet."""

    def __getattr__(self, name: str) -> object:
        # An import looks for attributes of this kind, and uses nothing of the module.
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} before it is used")
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
