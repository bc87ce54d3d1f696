"""Random lives of plugins on a simulated node, by seed, against a handler."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import attrs
import trio
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from ...protocol.errors import PluginError
from ...protocol.plugins.info import Plugin
from ...protocol.settings.config import Config
from ..handlers.handler import Handler, check_handler, policy_of, takes_link
from ..handlers.link import Link
from .node import DEFAULT_CONFIG, SimulatedNode
from .plugins import FakePlugin, PluggedIn

H = TypeVar("H", bound=Handler)

#: The sockets at which plugins appear. There are few, so that names meet at several of them.
_SOCKETS: Final = ("a.sock", "b.sock", "c.sock", "d.sock")
#: How many of the acts are followed by a check.
_CHECKED: Final = 0.3
#: How many of the acts are pauses.
_PAUSES: Final = 0.3
#: How many of the plugins that end are replaced at once.
_REPLACED: Final = 0.5
#: Virtual seconds in which the daemon tries every plugin again at the end.
_LAST_TRIES: Final = 600.0


def play(
    make_handler: Callable[[], H],
    plugins: Sequence[FakePlugin],
    *,
    invariant: Callable[[H, Sequence[Plugin]], None],
    seed: int,
    acts: int = 40,
    config: Config = DEFAULT_CONFIG,
) -> None:
    """Let plugins appear, change and fail at random on a simulated node, and check what the handler makes of them.

    ``make_handler`` returns a new handler, which gets all types of ``plugins``. Copies of ``plugins`` appear at four
    sockets, also with one name at several sockets; they are restarted, replaced by others, killed and removed, they
    refuse, hang and flap. One ``seed`` gives one script, and fewer ``acts`` give its beginning.

    ``invariant`` is called when the node has come to rest after some of the acts, and at the end, when all plugins work
    again. It gets the handler and the plugins that the handler has, the oldest first: ``register`` has returned for
    them, and ``deregister`` was not called. It raises an error, such as that of an ``assert``, if something is wrong.
    An error of ``validate``, ``register`` or ``deregister`` that is a fault of the handler is raised, too. The error
    gets a note with the acts so far, and with what repeats them.

    The function starts Trio itself, with a clock of its own. Call it from a test that is not ``async``.

    Raises:
      ValueError: if there are no ``plugins``.
      TypeError: if ``invariant`` is an ``async`` function, or the handler lacks a method.
    """
    if not plugins:
        raise ValueError("play() needs at least one FakePlugin")
    if inspect.iscoroutinefunction(invariant):
        raise TypeError("the invariant is an async function, and would never run: write it with def")
    trio.run(
        _play,
        make_handler,
        plugins,
        invariant,
        acts,
        attrs.evolve(config, seed=seed),
        clock=MockClock(autojump_threshold=0),
    )


async def _play(
    make_handler: Callable[[], H],
    plugins: Sequence[FakePlugin],
    invariant: Callable[[H, Sequence[Plugin]], None],
    acts: int,
    config: Config,
) -> None:
    handler = make_handler()
    for plugin in plugins:
        check_handler(plugin.type, handler, config.timeouts.of_handler(plugin.type))
    recorded = _RecordingHandler(handler)
    node = SimulatedNode(config, handlers=dict.fromkeys((plugin.type for plugin in plugins), recorded))
    rolls = random.Random(config.seed)
    lives, played = PluginLives(node, plugins, rolls), 0

    async def check() -> None:
        await node.settled(patience=0)
        if recorded.fault is not None:
            raise recorded.fault
        invariant(handler, [*recorded.has.values()])

    try:
        async with node:
            for played in range(1, acts + 1):  # noqa: B007 - the note tells how many
                await lives.act()
                if rolls.random() < _CHECKED:
                    await check()
            lives.recover()
            await trio.sleep(_LAST_TRIES)
            await check()
    except BaseException as error:  # That of pytest.fail() is no Exception.
        error.add_note("\n".join([f"The acts of seed {config.seed}:", *(f"  {line}" for line in lives.acts)]))
        error.add_note(f"Repeat them with play(..., seed={config.seed}, acts={played}).")
        raise


class _RecordingHandler:
    """A handler that passes each call on, and records which plugins the other one has."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.instances = policy_of(handler)
        if hasattr(handler, "follow"):
            self.follow = handler.follow
        self.has: dict[tuple[str, int], Plugin] = {}
        #: The first error that is no refusal, and no answer of a plugin.
        self.fault: Exception | None = None

    async def validate(self, plugin: Plugin) -> None:
        with self._noting():
            await _awaited(self._handler.validate(plugin))

    async def register(self, plugin: Plugin, link: Link) -> None:
        register = self._handler.register
        with self._noting():
            await _awaited(register(plugin, link) if takes_link(register) else register(plugin))
        self.has[plugin.socket, plugin.generation] = plugin

    async def deregister(self, plugin: Plugin) -> None:
        self.has.pop((plugin.socket, plugin.generation), None)
        with self._noting():
            await _awaited(self._handler.deregister(plugin))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except (PluginError, GRPCError):
            raise
        except Exception as error:
            self.fault = self.fault or error
            raise


async def _awaited(answer: Awaitable[None] | None) -> None:
    if answer is not None:
        await answer


class PluginLives:
    """Plugins on ``node`` that appear, change and fail at random: copies of ``plugins``."""

    def __init__(self, node: SimulatedNode, plugins: Sequence[FakePlugin], rolls: random.Random) -> None:
        self._node, self._plugins, self._rolls = node, plugins, rolls
        #: What has happened, in words.
        self.acts: list[str] = []
        #: The plugins whose sockets exist, and the fakes that they are.
        self.plugged: dict[str, tuple[PluggedIn, FakePlugin]] = {}

    async def act(self) -> None:
        """Let something happen at one of the sockets, or some time pass."""
        socket = self._rolls.choice(_SOCKETS)
        if self._rolls.random() < _PAUSES:
            await self._pause()
        elif socket in self.plugged:
            await self._rolls.choice([self._flap, self._die, self._go, self._refuse, self._stall])(socket)
        else:
            self._appear(socket)

    def recover(self) -> None:
        """Let all plugins run and work again."""
        self._note("all plugins recover")
        for process, plugin in self.plugged.values():
            plugin.hang, plugin.get_info_fails, plugin.reject_notify = None, 0, False
            process.restart()

    async def _pause(self) -> None:
        seconds = self._rolls.choice([0.1, 3.0, 40.0])
        self._note(f"{seconds:g} s pass")
        await trio.sleep(seconds)

    async def _flap(self, socket: str) -> None:
        for _ in range(self._rolls.randint(1, 4)):
            self._note(f"{socket} restarts")
            self.plugged[socket][0].restart()
            await trio.sleep(self._rolls.choice([0.0, 0.01, 0.6]))

    async def _die(self, socket: str) -> None:
        self._note(f"{socket} is killed, and its file stays")
        self.plugged[socket][0].crash()

    async def _go(self, socket: str) -> None:
        process, plugin = self.plugged.pop(socket)
        self._note(f"{plugin.name} at {socket} ends, and removes its file")
        process.stop()
        if self._rolls.random() < _REPLACED:
            self._appear(socket)

    async def _refuse(self, socket: str) -> None:
        process, plugin = self.plugged[socket]
        if self._rolls.choice([True, False]):
            self._note(f"{socket} restarts, and refuses two calls of GetInfo")
            plugin.get_info_fails = 2
        else:
            self._note(f"{socket} restarts, and refuses each NotifyRegistrationStatus")
            plugin.reject_notify = True
        process.restart()

    async def _stall(self, socket: str) -> None:
        process, plugin = self.plugged[socket]
        plugin.hang = self._rolls.choice(["get-info", "notify", None])
        if plugin.hang is None:
            self._note(f"{socket} is suspended")
            process.suspend()
        else:
            self._note(f"{socket} restarts, and hangs in {plugin.hang}")
            process.restart()

    def _appear(self, socket: str) -> None:
        plugin = attrs.evolve(self._rolls.choice(self._plugins))
        self._note(f"{plugin.name} appears at {socket}")
        self.plugged[socket] = self._node.plug(socket, plugin), plugin

    def _note(self, text: str) -> None:
        self.acts.append(f"{self._node.now:g} s: {text}")
