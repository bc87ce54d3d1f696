"""The first steps of a command, before it opens a descriptor, while any signal still ends it; and its imports."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

#: The signals for requests to a running daemon. Unhandled, they end a process, so the first lines of the command block
#: them (``plugind.__main__``).
REQUESTS: Final = (signal.SIGHUP, signal.SIGUSR1)
#: Modules that Trio imports for TLS. A daemon does not use them, and OpenSSL takes a twentieth of the start and 5 MiB.
_FOR_TLS: Final = ("ssl", "hmac")
#: The file names of glibc's libraries, by their names for ``ctypes.util.find_library``.
_OF_GLIBC: Final = {"c": "libc.so.6", "pthread": "libpthread.so.0"}


def open_standard_descriptors() -> None:
    """Open /dev/null at each of the descriptors 0 to 2 that is closed, and use it for output.

    Otherwise a socket would get the number, and receive all output. Python has no stream for a closed descriptor, and a
    line for standard error would go to standard output.
    """
    # Some containers have no /dev/null; then nothing is opened.
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

    Modules make a hundred thousand objects and little garbage. Examining them repeatedly takes a seventh of the
    daemon's start, so they are permanently excluded from collections.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def imports_of_daemon() -> Iterator[None]:
    """Import the modules of a daemon in the block, without those that no daemon uses.

    The TLS modules are imported at their first use. The C library is not searched for, which would run ldconfig twice:
    for Trio and for inotify.
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
    """Return the file name of a glibc library; None if it is another one, or this process has another C library."""
    import ctypes

    file = _OF_GLIBC.get(name)
    if file is not None:
        with contextlib.suppress(OSError):
            ctypes.CDLL(file)
            return file
    return None


def _postpone(name: str) -> None:
    """Import a module only at its first use."""
    from importlib.util import find_spec

    if name not in sys.modules and (spec := find_spec(name)) is not None:
        postponed = sys.modules[name] = _Postponed(name)
        postponed.__spec__, postponed.__loader__, postponed.__file__ = spec, spec.loader, spec.origin


class _Postponed(ModuleType):
    """Replaces a module that is not imported yet."""

    def __getattr__(self, name: str) -> object:
        # An import reads such attributes without using the module.
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} before it is used")
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
