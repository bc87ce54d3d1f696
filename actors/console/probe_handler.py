"""``plugind probe-handler``: check a handler that is a process of its own, against a node without plugins.

The node is real, and asks the handler about instances that do not exist. So each answer is seen, and the ends of
sessions come when they are wanted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from ...protocol.handlers.remote import MOST_OPEN, AskKind, AskResult, Instance
from ...protocol.logs.lines import SILENT
from ...protocol.plugins.info import Plugin
from ...protocol.settings.config import Config, Root
from ...supervisor import Supervisor
from ..handlers.remote import RemoteHandler, RemoteHandlers, Session
from .ending import EXIT_FAILED, EXIT_OK, CommandError, say

#: Seconds for an answer, and for a handler to connect for the first time or again.
ANSWER: Final = 10.0
CONNECT: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind probe-handler``."""
    parser.description = (
        "Start a handler, and check what it does with the asks of docs/remote-handlers.md. It gets the path of the"
        " status socket in PLUGIND_STATUS, and in the place of {status} in its words. It is asked about plugins that do"
        " not exist, so it must not connect to them before it is asked to follow one."
    )
    parser.epilog = "exit codes: 0 all is well, 1 something is not, 2 usage"
    parser.add_argument(
        "--name", default="probe.example.com", help="the name of a plugin that it accepts (%(default)s)"
    )
    parser.add_argument(
        "--version", action="append", metavar="V", help="a version that this plugin supports, repeatable (1.0.0)"
    )
    parser.add_argument("--keeps", action="store_true", help="what it has outlives its process: it is killed, too")
    parser.add_argument("type", metavar="TYPE", help="the plugin type that it serves")
    parser.usage = "plugind probe-handler [-h] [--name NAME] [--version V] [--keeps] TYPE -- COMMAND"


def run(args: argparse.Namespace) -> int:
    """Check the handler; return the exit code."""
    if not args.command:
        args.parser.error("there is no handler: give its command after --")
    return trio.run(partial(_check, args.type, args.name, args.version or ["1.0.0"], args.command, keeps=args.keeps))


class _WrongError(Exception):
    """The handler does not do what it should; the text says what."""


async def _check(plugin_type: str, name: str, versions: Sequence[str], command: Sequence[str], *, keeps: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="plugind-") as directory:
        status, root = f"{directory}/status.sock", f"{directory}/plugins"
        os.mkdir(root)
        config = Config(roots=(Root(root),), handler_uids={plugin_type: frozenset({os.getuid()})})
        async with Supervisor(config, status_socket=status, log=SILENT) as node:
            handlers = node.internals.remote_handlers()
            probe = Probe(handlers, handlers.by_type[plugin_type], name, tuple(versions), command, status)
            async with probe.started():
                return EXIT_OK if await probe.all_is_well(keeps=keeps) else EXIT_FAILED


class _Unheard:
    """Takes what the handler reports of the plugin."""

    def report(self, *_: object, **__: object) -> None:
        """Take its health."""

    def role(self, **_: object) -> None:
        """Take whether it is usable."""

    def gone(self, _: str) -> None:
        """Take that it has left."""


@attrs.define(eq=False)
class Probe:
    """The checks of one handler, in their order; each goes on from the one before."""

    handlers: RemoteHandlers
    handler: RemoteHandler
    name: str
    versions: tuple[str, ...]
    command: Sequence[str]
    status: str
    session: Session | None = None
    _process: subprocess.Popen[bytes] | None = None
    _generation: int = 0
    plugin: Instance = attrs.field(init=False)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Run the handler for a block."""
        self._start()
        try:
            yield
        finally:
            self._kill()

    def _start(self) -> None:
        words = [word.replace("{status}", self.status) for word in self.command]
        try:
            # Its output is the user's, on standard error: what is printed here are the checks.
            self._process = subprocess.Popen(words, env={**os.environ, "PLUGIND_STATUS": self.status}, stdout=2)
        except OSError as error:
            raise CommandError(f"cannot run {words[0]}: {error.strerror}") from error

    def _code(self) -> int | None:
        assert self._process is not None, "it was started"
        return self._process.poll()

    async def _why_over(self, kind: AskKind) -> str:
        """Return why its stream has ended amid an ask."""
        assert self._process is not None, "it was started"
        with trio.move_on_after(1):
            code = await trio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            return f"it has ended with code {code} when it was asked to {kind.value}"
        return f"it has closed its stream when it was asked to {kind.value}"

    def _kill(self) -> None:
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait()

    async def all_is_well(self, *, keeps: bool) -> bool:
        """Make the checks, print what comes of each, and return whether all went well."""
        checks: Iterable[tuple[str, Callable[[], Awaitable[None]]]] = (
            ("it connects, and says what it has", self.connects),
            ("it accepts and registers a plugin, and follows it", self.registers),
            (f"it answers {MOST_OPEN} asks at once", self.answers_many),
            ("it answers a ping", self.answers_ping),
            ("it answers a deregister of what it does not have", self.deregisters_unknown),
            ("it connects again when its stream ends, and says that it has the plugin", self.comes_back),
            ("it deregisters what it has from another run of plugind", self.deregisters_older),
            *([("killed and started again, it still has the plugin", self.is_killed)] if keeps else []),
        )
        for what, check in checks:
            try:
                await check()
            except _WrongError as error:
                say(f"FAILED  {what}: {error}\n")
                return False
            say(f"ok      {what}\n")
        return True

    # --- the checks ---

    async def connects(self) -> None:
        """Wait for a session in which it has said what it has."""
        before = self.session
        with trio.move_on_after(CONNECT):
            while True:
                session = self.handler.session
                if session is not None and session is not before and session.synced:
                    self.session = session
                    return
                if (code := self._code()) is not None:
                    raise _WrongError(f"it has ended with code {code}")
                await trio.sleep(0.05)  # A process that ends is no event here.
        others = [of for of, handler in self.handlers.by_type.items() if handler.session is not None]
        if session is None and others:
            raise _WrongError(f"it serves {', '.join(others)}, and not {self.handler.plugin_type}")
        if session is None:
            raise _WrongError(f"it has not asked for GET /v1/handlers/{self.handler.plugin_type} within {CONNECT:g} s")
        raise _WrongError(f"it has not posted …/held within {CONNECT:g} s")

    async def registers(self) -> None:
        """Ask for all that comes with a plugin."""
        self.plugin = self._instance(self.name)
        for kind in (AskKind.VALIDATE, AskKind.REGISTER):
            await self._accepted(kind, self.plugin)
        self.handler.links[self.plugin.id] = _Unheard()
        await self._accepted(AskKind.FOLLOW, self.plugin)

    async def answers_many(self) -> None:
        """Ask about many plugins at once; it may refuse them."""
        wrong = list[_WrongError]()

        async def ask(instance: Instance) -> None:
            try:
                await self._ask(AskKind.VALIDATE, instance)
            except _WrongError as error:
                wrong.append(error)  # A nursery would put it into a group.

        async with trio.open_nursery() as nursery:
            for number in range(MOST_OPEN):
                nursery.start_soon(ask, self._instance(f"{number}.{self.name}"))
        if wrong:
            raise wrong[0]

    async def answers_ping(self) -> None:
        """Ask for an answer alone."""
        await self._ask(AskKind.PING, None)

    async def deregisters_unknown(self) -> None:
        """Ask to deregister an instance that it was never asked to register."""
        await self._accepted(AskKind.DEREGISTER, self._instance(f"unknown.{self.name}"))

    async def comes_back(self) -> None:
        """End its stream, as a restart of the daemon does; it is expected to have the plugin still."""
        assert self.session is not None, "it was connected"
        self.handlers.close(self.session)
        await self._connects_with_plugin()

    async def deregisters_older(self) -> None:
        """End its stream once more, after which nothing is registered."""
        assert self.session is not None, "it was connected"
        self.handlers.close(self.session)
        await self.connects()
        with trio.move_on_after(ANSWER):
            while len(self.session.asks):  # noqa: ASYNC110 - nobody is told of the answers to these asks
                await trio.sleep(0.01)
            return
        raise _WrongError(f"it has not answered within {ANSWER:g} s")

    async def is_killed(self) -> None:
        """Kill it amid all, and start it again."""
        await self.registers()
        self._kill()
        self._start()
        await self._connects_with_plugin()

    async def _connects_with_plugin(self) -> None:
        """Wait for a session in which it has said that it has the plugin."""
        self.handler.registered[self.plugin.id] = self.plugin
        await self.connects()
        del self.handler.registered[self.plugin.id]
        assert self.session is not None, "it is connected again"
        if self.plugin.id not in self.session.holds:
            raise _WrongError("…/held does not have the instance")

    # --- to ask ---

    def _instance(self, name: str) -> Instance:
        self._generation += 1
        socket = f"{os.path.dirname(self.status)}/plugins/{name}.sock"
        plugin = Plugin(
            self.handler.plugin_type,
            name,
            socket,
            self.versions,
            socket,
            self._generation,
            pid=os.getpid(),
            uid=os.getuid(),
        )
        return Instance(f"{self.handler.epoch}-{self._generation}", name, socket, plugin)

    async def _accepted(self, kind: AskKind, instance: Instance) -> None:
        verdict = await self._ask(kind, instance)
        if verdict.error is not None:
            raise _WrongError(f"{kind.value} of {instance.name}: {verdict.error}")

    async def _ask(self, kind: AskKind, instance: Instance | None) -> AskResult:
        assert self.session is not None, "it is connected"
        with trio.move_on_after(ANSWER):
            verdict = await self.session.ask(kind, instance)
            if verdict.away:
                raise _WrongError(await self._why_over(kind))
            return verdict
        raise _WrongError(f"no answer to {kind.value} within {ANSWER:g} s")
