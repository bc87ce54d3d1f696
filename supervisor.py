"""The supervisor: child specs, the wiring of channels, the order of start and stop, and what a program embeds.

Started in this order, stopped in the reverse: the status actor, a handler actor per plugin type, and the *node*, which
is the reconciler with its registration actors and one watcher per root. The supervisor alone starts actors: the
reconciler asks it for a registration actor and gets the address. When the reconciler crashes, both worlds are lost: the
node as a whole lets go of its plugins and starts again from the file system (fault 85).
"""

from __future__ import annotations

import itertools
import random
import secrets
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Self

import attrs
import trio

from .actors import reconciler, registration, watcher
from .actors.conversation import ConversationConfig, Dialer
from .actors.dial_slots import DialSlots
from .actors.handlers import actor as handler_actor
from .actors.handlers.actor import Handler, policy_of
from .actors.handlers.registry import built_in_handlers
from .actors.io.descriptors import most_connections
from .actors.io.directory import Directory, RealDirectory
from .actors.io.grpc_client.dial import dial
from .actors.mailbox import RegistrationInbox, report
from .actors.registration import RegistrationConfig
from .actors.status import actor as status
from .actors.status.actor import StatusConfig
from .actors.supervision import Children, ChildSpec, Crashes, GaveUpError, Restart, leaves
from .protocol import messages as m
from .protocol import world
from .protocol.config import Config, Root, check_roots
from .protocol.errors import ConfigError
from .protocol.logs import SILENT, Logger
from .protocol.status import PluginStatus, StateName

#: Messages that may wait for the reconciler and for the status actor before their writers have to.
INBOX_SIZE = 4096
#: Changes that may wait for one reader of :meth:`Supervisor.changes` before it is dropped.
SUBSCRIBER_SIZE = 8192
#: Seconds for the status actor to end: its watchers are told, its answers are sent.
STATUS_GRACE = 2.0


@attrs.frozen
class Ports:
    """The outside, handed in: the real one by default, a simulated one in tests."""

    dial: Dialer = dial
    directory: Callable[[Root], Directory] = attrs.field(default=lambda _root: RealDirectory())


class NodeEndedError(Exception):
    """The node ended while somebody waited for it."""


class LaggedError(Exception):
    """A reader of :meth:`Supervisor.changes` was too slow, and was dropped so that nobody waits for it."""


class Supervisor:
    """A node that discovers plugins and registers them, for as long as the ``async with`` block runs.

    ::

        async with Supervisor(Config(roots=(Root("/run/my/plugins"),)), handlers={"Colour": ColourHandler()}) as node:
            plugin = await node.wait_for("red.example.com", type="Colour")

    Leaving the block stops the node: what is in flight finishes within ``config.timeouts.stop_grace``, or is rolled
    back. ``handlers`` are added to the built-in ones, and replace those of the same type. With a ``status_config`` that
    names a socket the node serves it; what it has to say goes to ``log``, by default nowhere.

    Raises, from the block:
      GaveUpError: if actors crash more often than ``config.intensity`` allows.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        handlers: Mapping[str, Handler] | None = None,
        ports: Ports | None = None,
        status_config: StatusConfig | None = None,
        log: Logger | None = None,
    ) -> None:
        self.config = config or Config()
        check_roots(self.config.roots)
        self._ports = ports or Ports(dial=partial(dial, limits=self.config.wire_limits))
        self._log = log or SILENT
        self._status_config = attrs.evolve(
            status_config or StatusConfig(),
            roots=tuple(root.path for root in self.config.roots),
            expected=self.config.expected,
            heartbeat=max(StatusConfig().heartbeat, 3 * self.config.rescan),
        )
        #: What the status actor knows survives its crash, so that nobody who reads a stream is cut off.
        self._memory = status.Memory()
        self._first_handlers = {**built_in_handlers(), **(handlers or {})}
        self._policies = {plugin_type: policy_of(handler) for plugin_type, handler in self._first_handlers.items()}
        self._rng = random.Random(secrets.randbits(64) if self.config.seed is None else self.config.seed)
        self._generations = itertools.count(1)
        self._to_reconciler, self._reconciler_inbox = trio.open_memory_channel[m.ReconcilerMessage](INBOX_SIZE)
        self._to_status, self._status_inbox = trio.open_memory_channel[m.StatusMessage](INBOX_SIZE)
        self._handlers: dict[str, m.HandlerAdded] = {}
        self._addresses: dict[str, RegistrationInbox] = {}
        #: Of a node that crashed: those whose handler hangs. Nobody else has their path before they have ended.
        self._detached: dict[str, RegistrationInbox] = {}
        self._when_they_end: list[Callable[[], None]] = []
        #: Streams of changes that are open; they end with the node.
        self._subscribers: set[trio.MemorySendChannel[m.ViewMessage]] = set()
        self._inboxes: dict[int, handler_actor.HandlerInbox] = {}
        self._retired: dict[str, trio.Event] = {}
        #: Those who wait for an answer of the node, and whether it has ended.
        self._asking: set[trio.CancelScope] = set()
        self._ended = False
        self._context: AbstractAsyncContextManager[None] | None = None
        self._nursery: trio.Nursery
        self._children: Children
        self._crashes: Crashes
        self._registrations: trio.Nursery
        self._registrations_kept = trio.Event()
        self._dial_slots = DialSlots(most_open=most_connections())
        timeouts = self.config.timeouts
        self._registration_config = RegistrationConfig(
            ConversationConfig(self._ports.dial, self._dial_slots, timeouts, self.config.info_limits),
            timeouts,
            self.config.backoff,
            self._rng,
            self._to_reconciler,
            self._to_status,
        )

    # --- the block ---

    async def __aenter__(self) -> Self:
        if self._context is not None:
            raise RuntimeError("a Supervisor runs once; make another")
        self._context = self._running()
        await self._context.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._context is not None
        return await self._context.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._start(nursery)
                try:
                    yield
                except BaseException as error:
                    failure = error
                    raise
                await self._stop()
        except BaseExceptionGroup as group:
            # Whoever embeds a node is not to meet the nursery in it: one error comes out as it went in.
            errors = list(leaves(group))
            if failure is not None and all(error in list(leaves(failure)) for error in errors):
                raise failure from failure.__cause__
            if len(errors) == 1 and isinstance(errors[0], GaveUpError | ConfigError):
                raise errors[0] from errors[0].__cause__
            raise
        finally:
            for subscriber in self._subscribers:
                subscriber.close()
            self._ended = True
            for scope in self._asking:
                scope.cancel()

    def _start(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._crashes = Crashes(self.config.intensity, self._report_crash)
        self._children = Children(nursery, self._crashes)
        self._children.start(ChildSpec("status", self._run_status, Restart.TRANSIENT))
        for plugin_type, handler in self._first_handlers.items():
            self._start_handler(plugin_type, handler)
        self._children.start(ChildSpec("dial slots", self._dial_slots.run))
        self._children.start(ChildSpec("registrations", self._keep_registrations, Restart.TRANSIENT))
        self._children.start(ChildSpec("node", self._run_node, Restart.TRANSIENT))

    async def _stop(self) -> None:
        """Stop in reverse order; what is in flight has the grace, half of it before it is rolled back (fault 87)."""
        grace = self.config.timeouts.stop_grace
        for message in (m.StopAsked(self.config.deregister_at_stop), m.StopForced()):
            with trio.move_on_after(grace / 2) as scope:
                await report(self._to_reconciler, message)
                await self._children.wait("node")
            if not scope.cancelled_caught:
                break
        await self._children.stop_all(but="status")
        # The status actor ends by itself when it has taken in what the others told last.
        self._to_status.close()
        with trio.move_on_after(STATUS_GRACE):
            await self._children.wait("status")
        await self._children.stop_all()
        for subscriber in self._subscribers:
            subscriber.close()

    # --- children ---

    async def _run_status(self) -> None:
        await status.run(
            self._status_config,
            inbox=self._status_inbox,
            reconciler=self._to_reconciler,
            log=self._log,
            memory=self._memory,
        )

    def _start_handler(self, plugin_type: str, handler: Handler) -> m.HandlerAdded:
        policy = policy_of(handler)
        inbox = handler_actor.HandlerInbox()
        added = self._handlers[plugin_type] = m.HandlerAdded(plugin_type, inbox, policy)
        self._retired[plugin_type] = trio.Event()
        self._inboxes[id(inbox)] = inbox

        lanes: handler_actor.Lanes = {}

        async def serve() -> None:
            await handler_actor.run(handler, inbox, self.config.timeouts.handler, lanes)

        self._children.start(ChildSpec(f"handler {plugin_type} {id(inbox):x}", serve, Restart.TRANSIENT))
        return added

    def _retire(self, effect: world.HandlerRetired) -> None:
        """The reconciler says that the removed handler has no plugin left: its actor ends when its inbox does."""
        self._inboxes.pop(id(effect.handler)).close()
        retired = self._retired.get(effect.type)
        if retired is not None and effect.type not in self._handlers:
            retired.set()

    async def _keep_registrations(self) -> None:
        """Registrations outlive a node that crashed, until they have settled what they owe."""
        async with trio.open_nursery() as self._registrations:
            self._registrations_kept.set()
            await trio.sleep_forever()

    async def _run_node(self) -> None:
        await self._registrations_kept.wait()
        async with trio.open_nursery() as nursery:
            watchers = Children(nursery, self._crashes)
            for root in self.config.roots:
                self._start_watcher(watchers, root)
            self._when_they_end += self._removed_handlers()
            self._settle_detached()
            try:
                await reconciler.run(
                    self._reconciler_inbox, self._to_status, self._spawn, self._retire, tuple(self._handlers.values())
                )
            except Exception:
                await self._let_go(nursery)
                raise
            nursery.cancel_scope.cancel()

    async def _let_go(self, nursery: trio.Nursery) -> None:
        """The reconciler crashed: each registration deregisters what it has, then all begins anew.

        Those whose handler hangs are waited for by their successors alone.
        """
        for path, address in tuple(self._addresses.items()):
            if path in self._detached:
                # It still waits for the one before it, and owes nothing.
                address.ended = trio.Event()
                del self._addresses[path]
            else:
                address.send_nowait(m.StopAsked(deregister=True))
        kept: list[m.ReconcilerMessage] = []
        with trio.move_on_after(self.config.timeouts.stop_grace):
            while self._addresses:
                # Nobody else reads what they report on their way out.
                kept.append(await self._reconciler_inbox.receive())
        with suppress(trio.WouldBlock):
            while True:
                kept.append(self._reconciler_inbox.receive_nowait())
        for message in kept:
            if isinstance(message, m.RetryAsked | m.StopAsked | m.StopForced):
                # Somebody waits for what the next reconciler does about it.
                self._nursery.start_soon(report, self._to_reconciler, message)
        for path, address in self._addresses.items():
            address.ended = trio.Event()
            self._detached[path] = address
        self._addresses = {}
        await self._forget_what_was_shown()
        nursery.cancel_scope.cancel()

    async def _forget_what_was_shown(self) -> None:
        """What vanishes while nobody keeps the worlds would be shown for ever; what is there is found again."""
        with trio.move_on_after(STATUS_GRACE):
            for plugin in (await self.snapshot()).plugins:
                if plugin.socket in self._detached:
                    continue
                gone = m.StateChanged(
                    plugin.socket, plugin.root, plugin.generation, StateName.GONE, trio.current_time(), "started anew"
                )
                await report(self._to_status, gone)

    def _removed_handlers(self) -> Iterator[Callable[[], None]]:
        """Yield what retires the handlers that are being removed, of which a reconciler that starts does not know."""
        current = {id(added.handler) for added in self._handlers.values()}
        for key in self._inboxes.keys() - current:
            yield self._inboxes.pop(key).close
        for plugin_type in self._retired.keys() - self._handlers.keys():
            yield self._retired[plugin_type].set

    def _settle_detached(self) -> None:
        """Once no plugin is left of a node that crashed, retire the handlers that waited for that."""
        if not self._detached:
            waiting, self._when_they_end = self._when_they_end, []
            for retire in waiting:
                retire()

    def _start_watcher(self, watchers: Children, root: Root) -> None:
        config = watcher.WatcherConfig(
            root.path,
            deprecated=root.deprecated,
            rescan=self.config.rescan,
            follow_symlinks_inside_root=self.config.follow_symlinks_inside_root,
        )

        async def watch() -> None:
            await watcher.run(
                config,
                directory=self._ports.directory(root),
                reconciler=self._to_reconciler,
                status=self._to_status,
                generations=self._generations,
                rng=self._rng,
            )

        watchers.start(ChildSpec(f"watcher {root.path}", watch))

    def _spawn(self, start: world.StartRegistration) -> m.Address[m.RegistrationMessage]:
        inbox = self._addresses[start.appeared.path] = RegistrationInbox()
        self._registrations.start_soon(self._run_registration, start, inbox)
        return inbox

    async def _run_registration(self, start: world.StartRegistration, inbox: RegistrationInbox) -> None:
        path = start.appeared.path
        crashed = False
        before = self._detached.get(path)
        if before is not None and before.ended is not None:
            await before.ended.wait()
        try:
            # Unless its own node is gone too by now.
            if inbox.ended is None:
                await registration.run(self._registration_config, inbox, start.appeared, start.to_deregister)
        except Exception as error:  # noqa: BLE001 - counted, and mended: the reconciler starts its successor
            crashed = True
            self._crashes.count(f"registration {path}", error)
        if inbox.ended is not None:
            # The node whose it was crashed: the present reconciler knows nothing of it.
            inbox.ended.set()
            if self._detached.get(path) is inbox:
                del self._detached[path]
                self._settle_detached()
            return
        del self._addresses[path]
        await report(self._to_reconciler, m.RegistrationEnded(path, crashed))

    def _report_crash(self, name: str, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        self._nursery.start_soon(report, self._to_status, m.ActorRestarted(name, text))
        if name == "status":
            self._nursery.start_soon(report, self._to_reconciler, m.ReportAsked())

    # --- what a program embeds ---

    @contextmanager
    def _asks(self, what: str) -> Iterator[None]:
        """Wait for an answer of the node no longer than the node lives.

        Raises:
          NodeEndedError: if it has ended, or ends first.
        """
        error = NodeEndedError(f"the node ended, and {what}")
        if self._ended:
            raise error
        with trio.CancelScope() as scope:
            self._asking.add(scope)
            try:
                yield
            except trio.ClosedResourceError:
                raise error from None
            finally:
                self._asking.discard(scope)
        if scope.cancelled_caught:
            raise error

    async def add_handler(self, plugin_type: str, handler: Handler) -> None:
        """Serve plugins of ``plugin_type`` from now on; those that are parked for it are tried at once (behaviour 29).

        Raises:
          ValueError: if the type has a handler; remove that one first.
          NodeEndedError: if the node ended before.
        """
        if plugin_type in self._handlers:
            raise ValueError(f"{plugin_type} has a handler: remove it first")
        with self._asks(f"no handler was added for {plugin_type}"):
            await report(self._to_reconciler, self._start_handler(plugin_type, handler))

    async def remove_handler(self, plugin_type: str) -> None:
        """Deregister all plugins of ``plugin_type`` with their handler, park them, and return when it has none left.

        Raises:
          KeyError: if the type has no handler.
          NodeEndedError: if the node ends before that.
        """
        if plugin_type not in self._handlers:
            raise KeyError(f"{plugin_type} has no handler")
        with self._asks(f"not all plugins of {plugin_type} were deregistered"):
            del self._handlers[plugin_type]
            await report(self._to_reconciler, m.HandlerRemoved(plugin_type))
            await self._retired[plugin_type].wait()

    async def snapshot(self) -> m.Snapshot:
        """Return all that is known at this moment.

        Raises:
          NodeEndedError: if the node ended before.
        """
        reply, answer = trio.open_memory_channel[m.Snapshot](1)
        with self._asks("has no snapshot to give"):
            await report(self._to_status, m.SnapshotAsked(reply))
            return await answer.receive()

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[m.Snapshot | m.PluginChanged]]:
        """Open a stream: first one :class:`Snapshot` of what is, then a :class:`PluginChanged` for each change.

        ::

            async with node.changes() as changes:
                async for change in changes: ...

        It ends when the node does.

        Raises, from the iteration:
          LaggedError: if the reader is so slow that thousands of changes wait for it.

        Raises:
          NodeEndedError: if the node ended before.
        """
        subscriber, stream = trio.open_memory_channel[m.ViewMessage](SUBSCRIBER_SIZE)
        self._subscribers.add(subscriber)
        try:
            with self._asks("has no changes to tell"):
                await report(self._to_status, m.Subscribed(subscriber))
            with stream:
                yield _Changes(stream)
        finally:
            self._subscribers.discard(subscriber)
            # The status actor may be gone before its readers: then nobody is to be told.
            with trio.move_on_after(1, shield=True), suppress(trio.ClosedResourceError):
                await report(self._to_status, m.Unsubscribed(subscriber))

    async def wait_for(self, name: str, *, type: str | None = None) -> PluginStatus:  # noqa: A002 - the field's word
        """Return the status of a plugin of that ``name`` as soon as one is registered; at once if one is.

        It waits as long as it takes; put it under ``trio.fail_after`` for a deadline.

        Raises:
          NodeEndedError: if the node ends before that.
        """
        async with self.changes() as changes:
            async for change in changes:
                plugins = change.plugins if isinstance(change, m.Snapshot) else (change.plugin,)
                for plugin in plugins:
                    if plugin.name == name and type in (None, plugin.type) and plugin.state is StateName.REGISTERED:
                        return plugin
        raise NodeEndedError(f"the node ended, and {name!r} was not registered")

    async def retry(self, target: str) -> Sequence[str]:
        """Try now, with a fresh backoff, and return the sockets that were told to; empty if ``target`` is not known.

        ``target`` is a socket path, or the name of a plugin.

        Raises:
          NodeEndedError: if the node ends before it was told.
        """
        sockets = [
            plugin.socket for plugin in (await self.snapshot()).plugins if target in (plugin.socket, plugin.name)
        ]
        reply, answer = trio.open_memory_channel[m.RetryAnswered](len(sockets) + 1)
        retried: list[str] = []
        with self._asks(f"{target!r} was not tried again"):
            for socket in sockets:
                await report(self._to_reconciler, m.RetryAsked(socket, reply))
                retried.extend((await answer.receive()).sockets)
        return tuple(retried)


@attrs.frozen
class _Changes:
    """What :meth:`Supervisor.changes` is read from; no generator, so that one may leave off in the middle."""

    _stream: trio.MemoryReceiveChannel[m.ViewMessage]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> m.Snapshot | m.PluginChanged:
        message = await self._stream.__anext__()
        if isinstance(message, m.Lagged):
            raise LaggedError("too many changes waited for this reader; open the stream again, and read it faster")
        return message
