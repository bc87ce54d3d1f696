"""The rules of a handler's calls and of the verdicts that plugins receive, checked while a script is played."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import attrs
import trio

from plugind.actors.handlers.link import Link
from plugind.actors.simulation.handlers import Ask, Behaviour, behave
from plugind.actors.simulation.plugins import Call, PluggedIn
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.protocol.plugins.status import PluginStatus, StateName
from plugind.protocol.settings.config import Timeouts


@attrs.define(eq=False)
class Registration:
    """A Register that was asked, and whose Deregister has not ended."""

    handler: int
    plugin: Plugin
    #: Register returned without an error.
    succeeded: bool = False
    #: When Deregister began.
    deregistering_since: float | None = None
    #: How often each plugin at the path was notified: a newer plugin may get the older one's notification.
    notified: Counter[object] = attrs.field(init=False, factory=Counter)
    #: An actor that knew of it crashed: it may be deregistered late, or twice.
    orphan: bool = False
    #: When Register began.
    began: float = attrs.field(init=False, factory=trio.current_time)


@attrs.frozen(eq=False)
class UnderWay:
    """A call of a handler that has not returned."""

    handler: int
    ask: Ask
    plugin: Plugin


class Report(Protocol):
    """Where the oracle writes what it sees; see :class:`plugind.tests.fuzz.trace.Trace`."""

    def line(self, *words: object) -> None:
        """Something happened."""

    def violated(self, oracle: str, text: str) -> None:
        """A rule was violated."""


class Users(Protocol):
    """What watches the users of plugins; see :class:`plugind.tests.fuzz.trust_oracle.TrustOracle`."""

    def registering(self, plugin: Plugin, others: Iterable[str], /) -> None:
        """A plugin is registered besides those of the same name at the paths ``others``."""

    def notified(self, path: str, /) -> None:
        """The plugin at ``path`` is notified that it is registered."""

    def refused(self, path: str, reason: str, /) -> None:
        """The plugin at ``path`` is notified that it is not registered."""


class Blame(Protocol):
    """What compares them; see :class:`plugind.tests.fuzz.blame_oracle.BlameOracle`."""

    def raised(self, path: str, error: BaseException, /) -> None:
        """A call about the plugin at ``path`` raised ``error``."""

    def refused(self, path: str, sent: str | None, /) -> None:
        """The plugin at ``path`` was sent the error ``sent``."""


class EndpointsOfPlugins(Protocol):
    """What watches endpoints; see :class:`plugind.tests.fuzz.endpoint_oracle.EndpointOracle`."""

    def validating(self, plugin: Plugin, earlier: Iterable[Plugin], later: Iterable[Plugin], /) -> None:
        """A plugin is validated while others are registered, the ``later`` ones perhaps after it was admitted."""

    def registering(self, plugin: Plugin, others: Iterable[Plugin], /) -> None:
        """A plugin is registered besides the ``others``, of whatever name."""


class Follows(Protocol):
    """What follows plugins; see :class:`plugind.tests.fuzz.follow_oracle.FollowOracle`."""

    async def follow(self, plugin: Plugin, link: Link, *, registered: bool) -> None:
        """Follow the plugin, which must be ``registered``."""

    def deregistering(self, plugin: Plugin, /) -> None:
        """Deregister of a plugin begins."""

    def forget(self) -> None:
        """Forget all: the daemon ended."""


class Steps(Protocol):
    """What is told what plugins and handlers are asked; see ``plugind.tests.fuzz.watched_node``."""

    def asked(self, path: str, plugged: PluggedIn, /) -> None:
        """The plugin at ``path`` is asked for its info."""

    def informed(self, path: str, plugged: PluggedIn, /, *, registered: bool) -> None:
        """The plugin at ``path`` is told whether it is registered."""

    def was_registered(self, plugin: Plugin, /) -> None:
        """A Register has succeeded."""

    def deregistering(self, plugin: Plugin, /) -> None:
        """A Deregister begins."""

    def deregistered(self, plugin: Plugin, /) -> None:
        """A Deregister has ended."""


class HandlerOracle:
    """Per generation Validate, Register, Notify, Deregister in order; one at a time per path and per name.

    A Validate that was superseded is withdrawn: it neither begins late nor is under way when the next attempt begins.
    """

    def __init__(
        self,
        trace: Report,
        policy: InstancePolicy,
        freed: Callable[[str], None],
        validating: Callable[[Plugin], None] = lambda _plugin: None,
        trust: Users | None = None,
        blame: Blame | None = None,
        endpoints: EndpointsOfPlugins | None = None,
        *,
        sees_all: bool = False,
        follows: Follows | None = None,
    ) -> None:
        self._trace = trace
        #: Follows the plugins of the handlers, if they are followed.
        self._follows = follows
        self._policy = policy
        #: Is given the name of a plugin once a Deregister of it has ended.
        self.freed = freed
        #: Is given the plugin of each Validate that begins.
        self._validating = validating
        #: Is given what handlers raise, and what refused plugins are sent.
        self.blame = blame
        #: Is told whose plugins are registered and notified.
        self._trust = trust
        self._endpoints = endpoints
        #: No event is lost, no scan fails and no actor crashes, so that a chmod is no reason to register anew.
        self.sees_all = sees_all
        #: The generation in which a plugin was first notified, by path and plugin.
        self._generations: dict[tuple[str, object], int] = {}
        self.registrations: dict[str, Registration] = {}
        self.under_way: list[UnderWay] = []
        #: The generations whose last Validate succeeded, and with which handler, by path.
        self._validated: dict[str, tuple[int, int]] = {}
        #: When the plugin at each path was last asked for its info. Since then it may wait for its handler.
        self._asked: dict[str, float] = {}
        #: What is told each step of a registration.
        self.steps: Steps | None = None
        #: Paths that are shown as leaving though nothing else is under way for their name, and since when.
        self._leaving: dict[str, float] = {}
        #: Registrations whose Deregister may come again, because an actor crashed.
        self._orphans: list[Registration] = []
        #: When the last Deregister of a path ended; and paths whose registration crashed, perhaps before a Register.
        self._deregistered: dict[str, float] = {}
        self._crashed: set[str] = set()
        self._handlers_made = 0

    def new_handler(self) -> WatchedHandler:
        """Return another handler, whose calls this oracle checks."""
        self._handlers_made += 1
        if self._follows is not None:
            return WatchedFollower(self._handlers_made, self._policy, self, self._follows)
        return WatchedHandler(self._handlers_made, self._policy, self)

    def orphan(self, path: str | None = None) -> None:
        """The actor of ``path``, or one that serves all paths, crashed: a Deregister may come late, or twice.

        Until the reconciler's grace is over, and longer, a handler that hangs keeps the asks of a crashed one waiting.
        """
        if path is not None:
            self._crashed.add(path)
        for other, registration in self.registrations.items():
            if path in (None, other):
                registration.orphan = True

    def forget(self) -> None:
        """Forget all registrations: the daemon ended. Notifications that were sent may still arrive."""
        now = trio.current_time()
        self._deregistered = {path: now for path, registration in self.registrations.items() if registration.succeeded}
        self.registrations.clear()
        self.under_way.clear()
        self._validated.clear()
        self._asked.clear()
        self._leaving.clear()
        self._orphans.clear()
        self._crashed.clear()
        self._generations.clear()
        if self._follows is not None:
            self._follows.forget()

    def registered(self) -> dict[str, Plugin]:
        """Return the plugins that are registered now, by path."""
        return {
            path: registration.plugin
            for path, registration in self.registrations.items()
            if registration.succeeded and registration.deregistering_since is None
        }

    def may_have_link(self, path: str, generation: int) -> bool:
        """Whether a Register of this instance was asked, and its Deregister has not ended."""
        registration = self.registrations.get(path)
        candidates = self._orphans if registration is None else (*self._orphans, registration)
        return any((each.plugin.socket, each.plugin.generation) == (path, generation) for each in candidates)

    def is_registered(self, plugin: Plugin) -> bool:
        """Whether this instance is registered, and no Deregister of it has begun."""
        registration = self.registrations.get(plugin.socket)
        return registration is not None and registration.succeeded and registration.plugin == plugin

    # --- the calls ----------------------------------------------------------------------------------------------------

    def began(self, handler: int, ask: Ask, plugin: Plugin) -> UnderWay:
        """A call began."""
        self._trace.line("handler", handler, ask, plugin.name, plugin.socket, plugin.generation)
        self._check_alone(handler, ask, plugin)
        match ask:
            case "validate":
                self._check_deregistered(ask, plugin)
                self._validating(plugin)
                if self._endpoints is not None:
                    admitted = self._asked.get(plugin.socket, trio.current_time())
                    earlier = self._plugins_besides(plugin, until=admitted)
                    later = [other for other in self._plugins_besides(plugin) if other not in earlier]
                    self._endpoints.validating(plugin, earlier, later)
                self._validated.pop(plugin.socket, None)
            case "register":
                self._register_began(handler, plugin)
            case "deregister":
                self._deregister_began(handler, plugin)
                if self._follows is not None:
                    self._follows.deregistering(plugin)
                if self.steps is not None:
                    self.steps.deregistering(plugin)
        call = UnderWay(handler, ask, plugin)
        self.under_way.append(call)
        return call

    def ended(self, call: UnderWay, *, ok: bool, cut_off: bool = False) -> None:
        """A call returned, or raised; ``cut_off`` says that it was cancelled before its deadline."""
        if call not in self.under_way:
            return  # The daemon was killed meanwhile.
        self.under_way.remove(call)
        plugin, path = call.plugin, call.plugin.socket
        self._trace.line("handler", call.handler, call.ask, plugin.name, path, "ok" if ok else "failed")
        registration = self.registrations.get(path)
        match call.ask:
            case "validate":
                if ok:
                    self._validated[path] = (plugin.generation, call.handler)
            case "register":
                if registration is not None and registration.plugin == plugin:
                    registration.succeeded = ok
                    if ok and self.steps is not None:
                        self.steps.was_registered(plugin)
            case "deregister":
                if self.steps is not None and not cut_off:
                    self.steps.deregistered(plugin)
                if registration is not None and registration.plugin == plugin and cut_off:
                    registration.deregistering_since = None  # It is called again.
                elif registration is not None and registration.plugin == plugin:
                    del self.registrations[path]
                    self._deregistered[path] = trio.current_time()
                    if registration.orphan:
                        self._orphans.append(registration)

    def _check_alone(self, handler: int, ask: Ask, plugin: Plugin) -> None:
        for call in self.under_way:
            if call.handler == handler and call.plugin.name == plugin.name:
                self._trace.violated(
                    "one-per-name", f"{ask} of {plugin.socket} begins during {call.ask} of {call.plugin.socket}"
                )
            elif call.plugin.socket == plugin.socket and not self._is_orphan(call):
                self._trace.violated("one-per-path", f"{ask} of {plugin.socket} begins during its {call.ask}")

    def _is_orphan(self, call: UnderWay) -> bool:
        registration = self.registrations.get(call.plugin.socket)
        orphans = self._orphans if registration is None else (*self._orphans, registration)
        return any(orphan.orphan and orphan.plugin == call.plugin for orphan in orphans)

    def _check_deregistered(self, ask: Ask, plugin: Plugin) -> None:
        registration = self.registrations.get(plugin.socket)
        if registration is None or registration.orphan:
            return
        self._trace.violated(
            "order",
            f"{ask} of {plugin.socket} generation {plugin.generation}, and generation "
            f"{registration.plugin.generation} was not deregistered",
        )

    def _register_began(self, handler: int, plugin: Plugin) -> None:
        path = plugin.socket
        self._check_deregistered("register", plugin)
        if self._validated.pop(path, None) != (plugin.generation, handler):
            self._trace.violated("order", f"register of {path} generation {plugin.generation} was not validated")
        for other, registration in self.registrations.items():
            if other == path or registration.plugin.name != plugin.name:
                continue
            now = trio.current_time()
            if registration.orphan:
                continue
            if self._leaving.get(other, now) < now:
                self._trace.violated("unregister-first", f"register of {path} before the deregister of {other}")
            elif self._is_rejected(plugin, registration):
                self._trace.violated("unregister-first", f"register of {path} besides {other}, which has its name")
        if self._trust is not None:
            self._trust.registering(plugin, self._others_of(plugin))
        if self._endpoints is not None:
            self._endpoints.registering(plugin, self._plugins_besides(plugin))
        if path in self.registrations:
            self._check_not_lost(plugin, self.registrations[path])
            # Removed first: the entries are in the order of their registration.
            self._orphans.append(self.registrations.pop(path))
        self.registrations[path] = Registration(handler, plugin)

    def _check_not_lost(self, plugin: Plugin, before: Registration) -> None:
        """Whatever crashed: what was registered is deregistered before the next plugin of its path is registered."""
        if before.succeeded and before.deregistering_since is None:
            self._trace.violated(
                "order",
                f"register of {plugin.socket}, and generation {before.plugin.generation} was never deregistered",
            )

    def _is_rejected(self, plugin: Plugin, holder: Registration) -> bool:
        """Whether the policy keeps the plugin out; a privileged one may succeed that of another user (fault 80)."""
        succeeds = plugin.privileged and not holder.plugin.privileged
        return self._policy is InstancePolicy.REJECT and holder.deregistering_since is None and not succeeds

    def _plugins_besides(self, plugin: Plugin, *, until: float = math.inf) -> list[Plugin]:
        """Return the other plugins that are registered, of whatever name, but for those that a crash may have left.

        Only those count whose Register began before ``until``.
        """
        others = [other for other in self.registrations.values() if other.began < until and not other.orphan]
        return [other.plugin for other in others if other.plugin.socket != plugin.socket]

    def _others_of(self, plugin: Plugin) -> list[str]:
        """Return the paths of the other registrations of that name, but for those that a crash may have left."""
        return [
            path
            for path, registration in self.registrations.items()
            if path != plugin.socket and registration.plugin.name == plugin.name and not registration.orphan
        ]

    def _deregister_began(self, handler: int, plugin: Plugin) -> None:
        registration = self.registrations.get(plugin.socket)
        self._leaving.pop(plugin.socket, None)
        if registration is None and plugin.socket in self._crashed:
            self._crashed.discard(plugin.socket)
            return  # Its successor cannot know whether it had asked to register.
        if any(orphan.plugin == plugin for orphan in self._orphans) or (
            registration is not None and registration.orphan
        ):
            if registration is not None and registration.plugin == plugin:
                registration.deregistering_since = trio.current_time()
            return
        if (
            registration is None
            or registration.plugin != plugin
            or registration.handler != handler
            or registration.deregistering_since is not None
        ):
            self._trace.violated(
                "order", f"deregister of {plugin.socket} generation {plugin.generation}, which is not pending"
            )
        else:
            registration.deregistering_since = trio.current_time()

    # --- what else is seen --------------------------------------------------------------------------------------------

    def shown(self, status: PluginStatus) -> None:
        """A state is shown: one that leaves must be deregistered at once, where nothing else is under way."""
        registration = self.registrations.get(status.socket)
        if (
            status.state is not StateName.LEAVING
            or registration is None
            # A status actor that was started again may show an earlier generation, whose Deregister has ended.
            or registration.plugin.generation != status.generation
            or registration.deregistering_since is not None
        ):
            self._leaving.pop(status.socket, None)
        elif all(call.plugin.name != registration.plugin.name for call in self.under_way):
            self._leaving.setdefault(status.socket, trio.current_time())

    def received(self, path: str, plugin: PluggedIn, call: Call, *, well: bool) -> None:
        """A plugin received a call; ``well`` says that it answers, and nothing broke its connections."""
        if call.registered is None:
            self._trace.line("asked", path, call.method)
            if call.method == "GetInfo":
                self._asked[path] = trio.current_time()
                if self.steps is not None:
                    self.steps.asked(path, plugin)
        else:
            if self.steps is not None:
                self.steps.informed(path, plugin, registered=call.registered)
            self._notified(path, plugin, registered=call.registered, well=well)
            if not call.registered and self.blame is not None:
                self.blame.refused(path, call.error)
            if not call.registered and self._trust is not None:
                self._trust.refused(path, call.error or "")

    def _notified(self, path: str, plugin: PluggedIn, *, registered: bool, well: bool) -> None:
        self._trace.line("notified", path, "registered" if registered else "refused")
        if not registered:
            return
        registration, now = self.registrations.get(path), trio.current_time()
        if registration is None and self._deregistered.get(path, -math.inf) >= plugin.reads_since:
            return  # The notification was sent before.
        if (
            registration is None
            or not registration.succeeded
            or (registration.deregistering_since is not None and registration.deregistering_since < now)
        ):
            self._trace.violated("order", f"{path} was notified that it is registered, and it is not")
        else:
            if self._trust is not None:
                self._trust.notified(path)
            registration.notified[plugin] += 1
            if registration.notified[plugin] > 1 and well:
                self._trace.violated(
                    "order", f"{path} was notified {registration.notified[plugin]} times that it is registered"
                )
            generation = self._generations.setdefault((path, plugin), registration.plugin.generation)
            if self.sees_all and well and generation != registration.plugin.generation:
                self._trace.violated("order", f"{path} is well, and was registered again without a reason")


class WatchedHandler:
    """A handler that behaves as its script says, and reports each call to the oracle."""

    follow: Callable[[Plugin, Link], Awaitable[None]] | None = None

    def __init__(self, number: int, policy: InstancePolicy, oracle: HandlerOracle) -> None:
        self.instances = policy
        self.number = number
        #: What the next calls do, by call and name.
        self.script: dict[tuple[Ask, str], deque[Behaviour]] = {}
        self._oracle = oracle

    async def validate(self, plugin: Plugin) -> None:
        """See :class:`plugind.actors.handlers.handler.Handler`."""
        await self._call("validate", plugin)

    async def register(self, plugin: Plugin) -> None:
        """See :class:`plugind.actors.handlers.handler.Handler`."""
        await self._call("register", plugin)

    async def deregister(self, plugin: Plugin) -> None:
        """See :class:`plugind.actors.handlers.handler.Handler`."""
        try:
            await self._call("deregister", plugin)
        finally:
            self._oracle.freed(plugin.name)

    async def _call(self, ask: Ask, plugin: Plugin) -> None:
        call = self._oracle.began(self.number, ask, plugin)
        ok = cut_off = False
        deadline = trio.current_time() + Timeouts().handler - EPSILON
        try:
            scripted = self.script.get((ask, plugin.name))
            await behave(scripted.popleft() if scripted else None)
            ok = True
        except (Exception, SystemExit, BaseExceptionGroup) as error:
            if self._oracle.blame is not None:
                self._oracle.blame.raised(plugin.socket, error)
            raise
        except trio.Cancelled:
            cut_off = trio.current_time() < deadline
            raise
        finally:
            self._oracle.ended(call, ok=ok, cut_off=cut_off)


class WatchedFollower(WatchedHandler):
    """A :class:`WatchedHandler` that follows its plugins."""

    def __init__(self, number: int, policy: InstancePolicy, oracle: HandlerOracle, follows: Follows) -> None:
        super().__init__(number, policy, oracle)
        self._follows = follows

    async def follow(self, plugin: Plugin, link: Link) -> None:
        """See :class:`plugind.actors.handlers.handler.Handler`."""
        await self._follows.follow(plugin, link, registered=self._oracle.is_registered(plugin))
