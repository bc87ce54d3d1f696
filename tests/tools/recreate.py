"""Plugins that re-create their sockets within milliseconds and while the daemon starts: none may be notified twice.

    python -m tests.tools.recreate --seconds 120            one daemon
    python -m tests.tools.recreate --seconds 1 --runs 100   a hundred starts
    python -m tests.tools.recreate --starts 200             directories in the place of sockets

A process of its own has a plugin at each of ``--sockets`` paths. Each plugin binds its socket, replaces it within
``--within`` milliseconds, lets the new one live for up to half a second, and begins again. A *life* is the time from
one bind() to the next. Within a life, a daemon may tell the plugin once that it is registered. The daemon runs in this
process, on real sockets and with inotify, ``--runs`` times for ``--seconds``.

Prints how many lives there were, how many were notified, and how many were notified twice. Exit code 1 if any was.

With ``--starts``, so many daemons are started one after the other, as processes that hardly ever rescan. Within 0.1 s
of the moment at which the status socket of one is there, a directory with sockets is removed, made again, and two
sockets are bound in it. Prints how often the daemon missed one of these. Exit code 1 if it ever did.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import attrs
import trio

from plugind import Config, Root, Supervisor
from plugind.actors.grpc.server.serve import ConnectionEnded, HandlerFailed, serve_stream
from plugind.actors.io.unix_socket import listen
from plugind.actors.simulation.plugins import Call, FakePlugin, FakeRegistration
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.tests.end_to_end.processes import daemon

_LIFE = 0.5
#: Seconds in which a daemon that has just started finds a new socket, even on a busy machine.
_FOUND = 30.0
#: The most seconds from the moment at which the status socket is there until the directory is removed.
_STARTING = 0.1


class Colours:
    """A handler that takes every plugin."""

    follow = None
    instances = InstancePolicy.ALL

    async def validate(self, plugin: Plugin) -> None:
        """Accept it."""

    async def register(self, plugin: Plugin) -> None:
        """Take it."""

    async def deregister(self, plugin: Plugin) -> None:
        """Let it go."""


# --- the process of the plugins ---------------------------------------------------------------------------------------


def _ignore(_: HandlerFailed | ConnectionEnded) -> None:
    """A life ends in the middle of a conversation: that is what this is about."""


@attrs.define
class Plugins:
    """The notifications that the plugins got. The number of the daemon that runs comes on standard input."""

    directory: Path
    within: float
    lives: int = 0
    run: int = 0
    notified: Counter[tuple[int, int]] = attrs.Factory(Counter)

    async def play(self, sockets: int) -> None:
        """Re-create the sockets until standard input ends, then print the tally."""
        async with trio.open_nursery() as nursery:
            for number in range(sockets):
                nursery.start_soon(self._recreate, number)
            async for _ in trio.lowlevel.FdStream(0):
                self.run += 1
                sys.stdout.write("ready\n")
                sys.stdout.flush()
            nursery.cancel_scope.cancel()
        print(json.dumps({"lives": self.lives, "notified": len(self.notified), "twice": self._twice()}))

    def _twice(self) -> int:
        return sum(times > 1 for times in self.notified.values())

    async def _recreate(self, number: int) -> None:
        chance = random.Random(number)
        while True:
            await self._live(number, chance.uniform(0.0, self.within))
            await self._live(number, chance.uniform(0.0, _LIFE))

    async def _live(self, number: int, seconds: float) -> None:
        self.lives += 1
        life = self.lives

        def heard(call: Call) -> None:
            if call.registered:
                self.notified[life, self.run] += 1

        plugin = FakePlugin("Colour", f"plugin-{number}")
        with trio.move_on_after(seconds) as scope, listen(str(self.directory / f"{number}.sock")) as listener:
            services = [FakeRegistration(plugin, heard, scope.cancel)]
            async with trio.open_nursery() as nursery:
                while True:
                    connection = trio.SocketStream(await listener.accept())
                    nursery.start_soon(partial(serve_stream, services, connection, report=_ignore))


# --- the daemon -------------------------------------------------------------------------------------------------------


async def run_daemons(directory: Path, plugins: subprocess.Popen[str], runs: int, seconds: float) -> None:
    """Run a daemon so many times for so many seconds."""
    assert plugins.stdin is not None
    assert plugins.stdout is not None
    for _ in range(runs):
        plugins.stdin.write("\n")
        plugins.stdin.flush()
        plugins.stdout.readline()
        async with Supervisor(Config(roots=(Root(str(directory)),)), handlers={"Colour": Colours()}):
            await trio.sleep(seconds)


# --- directories that are made again while a daemon starts ------------------------------------------------------------


def is_missed(directory: Path) -> bool:
    """Start a daemon, make a directory again as soon as it answers, and return whether it missed a socket there."""
    below = directory / "root" / "d"
    with ExitStack() as sockets:
        for path in (below, below / "e"):
            path.mkdir(mode=0o755, parents=True)
            _listen(path / "1.sock", sockets)
        started = sockets.enter_context(daemon(directory))
        while not Path(started.status).exists():
            time.sleep(0.001)
        time.sleep(random.uniform(0.0, _STARTING))
        shutil.rmtree(below)
        below.mkdir(mode=0o755)
        wanted = {_listen(below / name, sockets) for name in ("1.sock", "2.sock")}
        end = time.monotonic() + _FOUND
        while not (found := wanted <= trio.run(started.plugins).keys()) and time.monotonic() < end:
            time.sleep(0.02)
        return not found


def _listen(path: Path, sockets: ExitStack) -> str:
    listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(path))
    listener.listen()
    return str(path)


def main(arguments: list[str] | None = None) -> int:
    """Play, and print the tally."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each daemon runs")
    parser.add_argument("--runs", type=int, default=1, help="how many daemons run, one after the other")
    parser.add_argument("--sockets", type=int, default=48)
    parser.add_argument("--starts", type=int, help="start so many daemons beside a directory that is made again")
    parser.add_argument("--within", type=float, default=6.0, help="milliseconds until each socket is replaced")
    parser.add_argument("--directory", type=Path, help="where the root is made; a temporary directory by default")
    parser.add_argument("--plugins", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.plugins is not None:
        trio.run(Plugins(args.plugins, args.within / 1000).play, args.sockets)
        return 0
    with tempfile.TemporaryDirectory(dir=args.directory) as made:
        if args.starts is not None:
            missed = sum(is_missed(Path(made) / str(start)) for start in range(args.starts))
            print(f"{args.starts} starts, {missed} of them missed a socket")
            return 1 if missed else 0
        root = Path(made) / "root"
        root.mkdir(mode=0o755)
        command = [sys.executable, "-m", "plugind.tests.tools.recreate", "--plugins", str(root)]
        command += ["--sockets", str(args.sockets), "--within", str(args.within)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as plugins:
            trio.run(run_daemons, root, plugins, args.runs, args.seconds)
            tally = json.loads(plugins.communicate()[0])
    print(f"{tally['lives']} lives, {tally['notified']} notified, {tally['twice']} of them twice")
    return 1 if tally["twice"] else 0


if __name__ == "__main__":
    sys.exit(main())
