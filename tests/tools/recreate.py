"""Plugins that re-create their sockets within milliseconds and while the daemon starts: none may be notified twice.

    python -m tests.tools.recreate --seconds 120            one daemon
    python -m tests.tools.recreate --seconds 1 --runs 100   a hundred starts

A process of its own has a plugin at each of ``--sockets`` paths. Each plugin binds its socket, replaces it within
``--within`` milliseconds, lets the new one live for up to half a second, and begins again. A *life* is the time from
one bind() to the next. Within a life, a daemon may tell the plugin once that it is registered. The daemon runs in this
process, on real sockets and with inotify, ``--runs`` times for ``--seconds``.

Prints how many lives there were, how many were notified, and how many were notified twice. Exit code 1 if any was.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import attrs
import trio

from plugind import Config, Root, Supervisor
from plugind.actors.io.grpc_server.serve import ConnectionEnded, HandlerFailed, serve_stream
from plugind.actors.io.unix_socket import listen
from plugind.actors.simulation.plugins import Call, FakePlugin, FakeRegistration
from plugind.protocol.plugins import InstancePolicy, Plugin

_LIFE = 0.5


class Colours:
    """A handler that takes every plugin."""

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


def main(arguments: list[str] | None = None) -> int:
    """Play, and print the tally."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each daemon runs")
    parser.add_argument("--runs", type=int, default=1, help="how many daemons run, one after the other")
    parser.add_argument("--sockets", type=int, default=48)
    parser.add_argument("--within", type=float, default=6.0, help="milliseconds until each socket is replaced")
    parser.add_argument("--directory", type=Path, help="where the root is made; a temporary directory by default")
    parser.add_argument("--plugins", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.plugins is not None:
        trio.run(Plugins(args.plugins, args.within / 1000).play, args.sockets)
        return 0
    with tempfile.TemporaryDirectory(dir=args.directory) as made:
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
