"""Builds the Go programs in ``tests/peers``: what Kubernetes itself has of the other side, and plugins of others.

::

    python -m tests.tools.peers              # builds all
    python -m tests.tools.peers kubelet-pm   # builds one
    python -m tests.tools.peers --list       # what was built, from which modules, and their licences

Each directory of ``tests/peers`` is a Go module, which names the exact version of everything it is built from. It has a
``main.go`` of ours, or its ``go.mod`` has a ``tool`` line that names the program of somebody else. A program is built
once for each content of its directory and version of Go, and kept in ``~/.cache/plugind-peers`` or in the directory
that ``PLUGIND_PEERS`` names. A build needs the Go of the ``go`` line, and reaches the Go module proxy until the modules
are in Go's own cache.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

PEERS = Path(__file__).parents[1] / "peers"
#: Where Go's own archive installs it.
USUAL = "/usr/local/go/bin"
#: What the go command says when it cannot have a module, whatever is wrong with the program.
UNREACHED = re.compile(r"dial tcp|no such host|i/o timeout|TLS handshake|(403|404|410|5\d\d) [A-Z]|GOPROXY=off")
#: Packages for which one line of progress is enough.
PACKAGES = 50
#: A phrase of each licence, in the order in which they are looked for.
LICENCES = {
    "Apache License": "Apache-2.0",
    "Mozilla Public License": "MPL-2.0",
    "Permission is hereby granted, free of charge": "MIT",
    "Permission to use, copy, modify, and/or distribute": "ISC",
    "Permission to use, copy, modify, and distribute": "ISC",
    "Neither the name of": "BSD-3-Clause",
    "Redistribution and use in source and binary forms": "BSD-2-Clause",
}


class MissingError(Exception):
    """What a build needs is not on this machine and cannot be fetched."""


class BuildError(Exception):
    """The go command refused a program; the message is all that it said."""


@attrs.frozen
class Go:
    """A go command."""

    path: str
    #: For example ``(1, 26, 8)``.
    version: tuple[int, ...]

    def run(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run it without a network, and return what it prints."""
        environment = {**os.environ, **SETTINGS, "GOPROXY": "off"}
        command = [self.path, *arguments]
        return subprocess.run(command, env=environment, cwd=cwd, check=True, capture_output=True, text=True).stdout


#: The same builds on all machines: no other toolchain, no workspace, no C compiler.
SETTINGS = {"GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off", "CGO_ENABLED": "0"}
FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-v")


def names() -> list[str]:
    """Return the names of all peers."""
    return sorted(found.parent.name for found in PEERS.glob("*/go.mod"))


def cache() -> Path:
    """Return the directory of the programs that were built."""
    return Path(os.environ.get("PLUGIND_PEERS") or Path.home() / ".cache" / "plugind-peers")


def built(source: Path, say: Callable[[str], None] = lambda line: None) -> Path:
    """Build the module in a directory, unless it was built before, and return the path of the program.

    Processes that need it at the same time build it once. ``say`` gets lines of progress.

    Raises:
      MissingError: if there is no such Go, or a module cannot be fetched.
      BuildError: if the program is wrong.
    """
    go = _go(_version(re.findall(r"^go (\S+)$", (source / "go.mod").read_text(), re.MULTILINE)[0]))
    program = cache() / f"{source.name}-{_key(source, go)}" / source.name
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    # One for all: builds side by side would compile the same packages twice.
    with (cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(go, source, program, say)
    return program


def _build(go: Go, source: Path, program: Path, say: Callable[[str], None]) -> None:
    say(f"{source.name}: building with {go.path}")
    unfinished = program.with_suffix(".new")
    command = [go.path, "build", *FLAGS, "-o", str(unfinished), *_packages(source)]
    lines, packages = [], 0
    environment = {**os.environ, **SETTINGS}
    with subprocess.Popen(command, cwd=source, env=environment, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            lines.append(line)
            if line.startswith("go: downloading"):
                say(f"{source.name}: {line.strip()}")
            else:
                packages += 1
                if packages % PACKAGES == 0:
                    say(f"{source.name}: {packages} packages")
    if process.returncode != 0:
        raise (MissingError if UNREACHED.search("".join(lines)) else BuildError)("".join(lines))
    unfinished.rename(program)
    say(f"{source.name}: {program}")


def _packages(source: Path) -> list[str]:
    return re.findall(r"^tool (\S+)$", (source / "go.mod").read_text(), re.MULTILINE) or ["."]


def _key(source: Path, go: Go) -> str:
    content = hashlib.sha256(repr((go.version, SETTINGS, FLAGS)).encode())
    for path in sorted(source.iterdir()):
        content.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return content.hexdigest()[:16]


def _go(wanted: tuple[int, ...]) -> Go:
    for found in _gos():
        if found.version >= wanted:
            return found
    raise MissingError(f"Go {'.'.join(map(str, wanted))} or newer is not installed")


@functools.cache
def _gos() -> tuple[Go, ...]:
    """Return all go commands in the path, and the one in the usual place."""
    places = [*os.environ.get("PATH", os.defpath).split(":"), USUAL]
    paths = [path for path in dict.fromkeys(shutil.which("go", path=place) for place in places) if path]
    return tuple(Go(path, _version_of(path)) for path in paths)


def _version_of(path: str) -> tuple[int, ...]:
    environment = {**os.environ, **SETTINGS}
    said = subprocess.run([path, "version"], env=environment, check=True, capture_output=True, text=True).stdout
    return _version(said.split()[2].removeprefix("go"))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def versions(program: Path) -> str:
    """Return the versions of Kubernetes and of Go in a program that was built."""
    said = _go((1,)).run("version", "-m", str(program))
    found = re.search(r"\sk8s\.io/kubernetes\s+(\S+)", said)
    return f"Kubernetes {found[1] if found else 'unknown'}, {said.split()[1]}"


def described() -> Iterator[str]:
    """List the programs that were built, the modules in them with their licences, and the sizes of the caches."""
    users: dict[tuple[str, str], list[str]] = {}
    go = _go((1,))
    for name in names():
        program = built(PEERS / name)
        yield f"{name}: {program}, {_mib(program.stat().st_size)}"
        for line in go.run("version", "-m", str(program)).splitlines():
            kind, *about = line.split()
            if kind == "dep":
                users.setdefault((about[0], about[1]), []).append(name)
    modules, objects = go.run("env", "GOMODCACHE", "GOCACHE").split()
    for (module, version), peers in sorted(users.items()):
        yield f"{module} {version} {licence(Path(modules), module, version)} ({', '.join(peers)})"
    for what, place in {"programs": cache(), "modules": Path(modules), "compiled packages": Path(objects)}.items():
        size = sum(path.lstat().st_size for path in place.rglob("*"))
        yield f"{what}: {place}, {_mib(size)}"


def licence(modules: Path, module: str, version: str) -> str:
    """Return the licence of a module in Go's cache, by the words of its licence file."""
    escaped = re.sub("[A-Z]", lambda letter: f"!{letter[0].lower()}", f"{module}@{version}")
    files = sorted(path for path in (modules / escaped).glob("*") if re.match("(?i)licen[cs]e|copying", path.name))
    text = " ".join(" ".join(path.read_text(errors="replace") for path in files if path.is_file()).split())
    return next((licence for phrase, licence in LICENCES.items() if phrase in text), "of its own")


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Build, and print the paths of the programs or the list."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.peers", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(names())}; default: all")
    parser.add_argument("--list", action="store_true", help="print the modules in the programs and their licences")
    arguments = parser.parse_args()
    try:
        for name in arguments.names or names():
            program = built(PEERS / name, _say)
            if not arguments.list:
                print(program, flush=True)
        if arguments.list:
            print(*described(), sep="\n")
    except (MissingError, BuildError) as error:
        _say(str(error).rstrip())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
