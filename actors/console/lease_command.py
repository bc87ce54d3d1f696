"""The command of the user, which takes the place of ``plugind allocate``.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ...protocol.leases.forms import FormError, environment
from ...protocol.leases.values import Lease
from ...protocol.text import escaped
from .ending import complain
from .lease_failures import EXIT_CANNOT_RUN, EXIT_NOT_FOUND, EXIT_NOT_RUN

#: The signals that Python ignores, and that a program does not expect to be ignored.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def is_there(name: str) -> bool:
    """Return whether there is such a command, before anybody waits an hour for its devices."""
    return any(map(os.path.exists, _places(name)))


def _places(name: str) -> list[str]:
    """Return where a command may be, by our own PATH: a plugin may have set another one."""
    return [name] if "/" in name else [os.path.join(directory, name) for directory in os.get_exec_path()]


def _become(command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Become the first of the files that can be run, as ``os.execvpe`` does with the PATH of ``variables``."""
    missing: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    failed: OSError | None = None
    for place in _places(command[0]):
        try:
            os.execve(place, [*command], variables)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            failed = failed or error
    raise failed or missing


def execute(command: Sequence[str], lease: Lease) -> int:
    """Become the command, with the lease in its environment; return the exit code if that cannot be.

    The lease ends with this process, whatever it has become.
    """
    try:
        variables = {**os.environ, **environment(lease)}
        sys.stderr.flush()
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
        _become(command, variables)
    except (FormError, ValueError) as error:
        complain(str(error))
        return EXIT_NOT_RUN
    except OSError as error:
        complain(f"{escaped(command[0])} cannot be run: {error.strerror}")
        return EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_CANNOT_RUN
