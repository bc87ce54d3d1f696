"""What followed plugins do, and the rules of following, checked while a script is played.

In every fifth script the handlers follow their plugins. What a follow does is drawn from the seed of the script and
from which run of which instance it is, so that events that are taken out change nothing about it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

import attrs
import trio

from plugind.actors.handlers.link import Link
from plugind.actors.simulation.scheduling import EPSILON
from plugind.protocol.errors import NoConnectionError
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.plugins.status import PluginStatus

#: The scripts whose handlers follow: those whose seeds leave this remainder.
EVERY, REMAINDER = 5, 4
#: Seconds that a follow has to end, and until one that failed is started again for the first time.
END_GRACE = 5.0
FIRST_PAUSE = 1.0
#: The longest time until a follow that ended is started again: 30 s and their jitter.
LONGEST_PAUSE = 33.0
#: The socket and the generation of an instance.
Key = tuple[str, int]


class FollowError(Exception):
    """A follow fails as its script says."""


@attrs.define(eq=False)
class _Run:
    """One run of ``follow``."""

    link: Link
    #: When it was cancelled.
    cancelled_at: float | None = None
    #: It does nothing any more, since the faults have ended.
    calm: bool = False


@attrs.define
class FollowOracle:
    """An instance is followed once, while it is registered, and until just before its Deregister.

    A follow that fails leaves the registration alone. What a follow reports is shown, and it is told its role.
    """

    _violated: Callable[[str, str], None]
    _seed: int
    #: Whether nothing but its follow can be the reason why this plugin is deregistered.
    is_untouched: Callable[[Plugin], bool] = lambda _plugin: False
    #: The faults have ended.
    calm: bool = False
    _runs: dict[Key, _Run] = attrs.Factory(dict)
    #: How often each instance was followed.
    _count: Counter[Key] = attrs.Factory(Counter)
    #: Since when an instance is not followed, of those that were.
    _ended: dict[Key, float] = attrs.Factory(dict)
    #: When the follow of an instance failed that was untouched then.
    _failed: dict[Key, float] = attrs.Factory(dict)
    #: What was reported of each instance last.
    _health: dict[Key, tuple[Health, str]] = attrs.Factory(dict)
    _usable: dict[Key, bool] = attrs.Factory(dict)

    def forget(self) -> None:
        """Forget all: the daemon ended."""
        for remembered in (self._runs, self._count, self._ended, self._failed, self._health, self._usable):
            remembered.clear()

    # --- what a follow does -------------------------------------------------------------------------------------------

    async def follow(self, plugin: Plugin, link: Link, *, registered: bool) -> None:
        """Do what the script says of this run."""
        key = plugin.socket, plugin.generation
        if key in self._runs:
            self._violated("follow", f"{plugin.socket} generation {plugin.generation} is followed twice")
        if not registered:
            self._violated("follow", f"{plugin.socket} generation {plugin.generation} is followed, and not registered")
        run = self._runs[key] = _Run(link)
        self._count[key] += 1
        self._ended.pop(key, None)
        chance = random.Random(f"plugind follow {self._seed} {key} {self._count[key]}")
        try:
            while not self.calm:
                await self._act(key, run, chance)
            run.calm = True
            self._report(key, link, Health.HEALTHY, f"calm {self._count[key]}")
            await trio.sleep_forever()
        except trio.Cancelled:
            run.cancelled_at = trio.current_time()
            with trio.CancelScope(shield=True):
                await trio.sleep(0.0 if self.calm else chance.choice((0.0, 0.0, 0.0, 0.5)))
            raise
        except FollowError:
            if self.is_untouched(plugin):
                self._failed[key] = trio.current_time()
            self._health[key] = Health.UNKNOWN, ""
            raise
        finally:
            if self._runs.get(key) is run:
                del self._runs[key]
                self._ended[key] = trio.current_time()

    async def _act(self, key: Key, run: _Run, chance: random.Random) -> None:
        match chance.randrange(8):
            case 0:
                raise FollowError("the script says so")
            case 1:
                with trio.move_on_after(chance.choice((0.0, 0.2, 3.0))):
                    await self._hold_channel(run.link)
            case 2:
                self._usable[key] = chance.random() < 0.5
                run.link.role(usable=self._usable[key])
            case 3:
                for number in range(20):
                    self._report(key, run.link, chance.choice(list(Health)), f"report {number}")
            case _:
                self._report(key, run.link, chance.choice(list(Health)), "")
        await trio.sleep(chance.choice((0.05, 0.5, 2.0, 11.0)))

    async def _hold_channel(self, link: Link) -> None:
        try:
            await (await link.connect(timeout=2.0)).wait_closed()
        except (NoConnectionError, trio.ClosedResourceError):
            return

    def _report(self, key: Key, link: Link, health: Health, reason: str) -> None:
        self._health[key] = health, reason
        link.report(health, reason, {"run": str(self._count[key])})

    # --- the rules ----------------------------------------------------------------------------------------------------

    def deregistering(self, plugin: Plugin) -> None:
        """Deregister of an instance begins."""
        key = plugin.socket, plugin.generation
        # It may be registered once more: with another link, and followed only once that has succeeded.
        self._ended.pop(key, None)
        self._usable.pop(key, None)
        run, now = self._runs.get(key), trio.current_time()
        named = f"{plugin.socket} generation {plugin.generation}"
        if run is not None and (run.cancelled_at is None or now - run.cancelled_at < END_GRACE - EPSILON):
            self._violated("follow", f"deregister of {named} begins while it is followed")
        failed = self._failed.pop(key, None)
        if failed is not None and now - failed < FIRST_PAUSE and self.is_untouched(plugin):
            self._violated("follow", f"{named} is deregistered because its follow failed")

    def look(self, links: Collection[Key], registered: Callable[[str, int], bool]) -> None:
        """Compare the links that are open with what is registered, or being registered."""
        now = trio.current_time()
        for key in links:
            path, generation = key
            if not registered(path, generation):
                self._violated("follow", f"{path} generation {generation} has a link, and is not registered")
            if now - self._ended.get(key, now) > LONGEST_PAUSE:
                self._violated("follow", f"{path} generation {generation} is followed no more")

    def usable(self, plugin: Plugin) -> bool | None:
        """Whether the last report said that the plugin can be used; None if none said anything of it."""
        return self._usable.get((plugin.socket, plugin.generation))

    def differences(self, taken: Mapping[str, Plugin]) -> Iterator[str]:
        """Yield the registered plugins that are not followed, or still do as the script says."""
        for path, plugin in taken.items():
            run = self._runs.get((path, plugin.generation))
            if run is None or not run.calm:
                yield f"{path} is registered, and not followed in calm"

    def check_view(self, statuses: Collection[PluginStatus], taken: Mapping[str, Plugin]) -> None:
        """Check that each registered plugin is shown as its follow reported it, and that this was told its role."""
        for status in statuses:
            plugin = taken.get(status.socket)
            run = None if plugin is None else self._runs.get((status.socket, plugin.generation))
            if plugin is None or run is None:
                continue
            reported = self._health[status.socket, plugin.generation]
            shown = status.health, status.health_reason
            if shown != reported:
                self._violated("view", f"{status.socket} reported {reported}, and is shown as {shown}")
            if run.link.active is not status.active:
                self._violated(
                    "view", f"{status.socket} has the role {run.link.active}, and is shown as {status.active}"
                )
