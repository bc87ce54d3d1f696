"""The imports of a daemon leave out what none of its modules uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Imports in the block, and prints what is true of it afterwards.
PROGRAM = """
import sys
from ctypes import util
from plugind.actors.console.start import imports_of_daemon

search = util.find_library
with imports_of_daemon():
{imports}
print({printed})
"""


def printed(imports: str, what: str) -> str:
    lines = "".join(f"    {line}\n" for line in imports.splitlines())
    command = [sys.executable, "-c", PROGRAM.format(imports=lines, printed=what)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_trio_is_imported_without_openssl() -> None:
    assert printed("import trio", "{'_ssl', '_hashlib'} & {*sys.modules}, trio.SSLStream.__name__") == "set() SSLStream"


def test_a_daemon_that_has_loaded_all_has_no_openssl() -> None:
    loaded = "[import_module(name, run.__package__) for name in run.LOADED_WHEN_READY]"
    imports = f"from importlib import import_module\nfrom plugind.actors.console import run\n{loaded}"
    assert printed(imports, "{'_ssl', '_hashlib'} & {*sys.modules}") == "set()"


def test_the_classes_that_registrations_use_are_completed_ahead() -> None:
    imports = "from plugind.actors.console import run\nfrom plugind.protocol import values"
    completed = "{*values.complete_classes(run.USED_BY_REGISTRATIONS)}"
    there = "all(name in sys.modules for name in run.USED_BY_REGISTRATIONS)"
    assert (
        printed(imports, f"{there}, {completed} > {{'Pause', 'Claim', 'StateChanged', 'Credentials'}}") == "True True"
    )


@pytest.mark.parametrize(
    "use",
    [
        "trio._ssl._stdlib_ssl.SSLContext",
        "__import__('ssl').SSLContext",
        "getattr(__import__('ssl', fromlist=['SSLContext']), 'SSLContext')",
    ],
)
def test_a_module_that_was_postponed_is_imported_when_something_of_it_is_used(use: str) -> None:
    assert printed("import trio", f"{use}, {use} is sys.modules['ssl'].SSLContext") == "<class 'ssl.SSLContext'> True"


def test_the_libraries_of_glibc_are_not_searched_for_and_others_are() -> None:
    found = "found = [util.find_library(name) for name in ('c', 'pthread', 'no-such-library')]"
    assert printed(found, "found, util.find_library is search") == "['libc.so.6', 'libpthread.so.0', None] True"
