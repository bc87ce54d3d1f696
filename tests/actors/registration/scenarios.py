"""Lives of a plugin on a node, to be disturbed at each suspension of its registration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio

from plugind.actors.handlers import calls
from plugind.actors.messaging import mailbox
from plugind.actors.registration import actor, reports
from plugind.actors.simulation.handlers import Ask, HandlerCall
from plugind.protocol.plugins.info import Plugin
from plugind.protocol.settings.config import Config
from plugind.testing import DEFAULT_CONFIG, Fails, FakeCSIDriver, FakeHandler, FakePlugin, Hangs, Takes

#: Without what looks at all sockets again and again, which would be most of the work.
CONFIG = attrs.evolve(DEFAULT_CONFIG, rescan=3600.0, hung_after=None)
#: Seconds for which a report waits where the inboxes are full.
WAIT = 0.3


@attrs.define(eq=False)
class Scenario:
    name: str
    handler: Callable[[], FakeHandler]
    plugin: Callable[[], FakePlugin]
    #: The plugin binds its socket, and listens only after so many seconds.
    listens_after: float = 0.0
    config: Config = CONFIG
    #: The inboxes of the reconciler, the liveness and the status actor have no room for a report that comes.
    full: bool = False
    #: The registration crashes after one second.
    crashes: bool = False
    #: It is disturbed at each of its places, and not only where no scenario before it is suspended.
    everywhere: bool = False

    @contextmanager
    def played(self, handler: FakeHandler) -> Iterator[None]:
        """Have threads and full inboxes in virtual time within the block."""
        with pytest.MonkeyPatch.context() as patched:
            if isinstance(handler, InThreads):
                patched.setattr(calls, "time_is_virtual", lambda: False)
                patched.setattr(trio.to_thread, "run_sync", handler.run_in_thread)
            if self.full:
                patched.setattr(reports, "offer", lambda _channel, _message: False)
                patched.setattr(reports, "report", _report_once_there_is_room)
                patched.setattr(actor, "report", _report_once_there_is_room)
            yield


async def _report_once_there_is_room(channel: trio.MemorySendChannel[Any], message: object) -> None:
    await trio.sleep(WAIT)
    await mailbox.report(channel, message)


class InThreads(FakeHandler):
    """A handler of ``def`` methods, the first call of one of which returns half a minute after its deadline."""

    def __init__(self, late: Ask) -> None:
        super().__init__()
        self._late: Ask | None = late

    def calm(self) -> None:
        self._late = None

    def validate(self, plugin: Plugin) -> None:  # type: ignore[override]  # it runs in a thread
        self._begin("validate", plugin)

    def register(self, plugin: Plugin) -> None:  # type: ignore[override]  # it runs in a thread
        self._begin("register", plugin)

    def deregister(self, plugin: Plugin) -> None:  # type: ignore[override]  # it runs in a thread
        self._begin("deregister", plugin)

    def _begin(self, ask: Ask, plugin: Plugin) -> None:
        self.calls.append(HandlerCall(round(trio.current_time(), 6), ask, plugin.name))
        self.plugins.append((ask, plugin))
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)

    async def run_in_thread(self, run: Callable[[], None], **_: object) -> None:
        """Stand for ``trio.to_thread.run_sync`` in virtual time."""
        run()
        if self.calls[-1].ask == self._late:
            self.calm()
            await trio.sleep(CONFIG.timeouts.handler + 30.0)
        self._under_way -= 1


def red(**faults: object) -> Callable[[], FakePlugin]:
    return lambda: FakePlugin("Colour", "red", **faults)  # type: ignore[arg-type]


def slow() -> FakeHandler:
    handler = FakeHandler()
    for ask in ("validate", "register", "deregister"):
        handler.always(ask, Takes(1.0))
    return handler


def failing(ask: Ask) -> Callable[[], FakeHandler]:
    return lambda: FakeHandler().script(ask, Fails("no"))


def hanging(ask: Ask) -> Callable[[], FakeHandler]:
    return lambda: FakeHandler().script(ask, Hangs())


def late(ask: Ask) -> Scenario:
    return Scenario(f"returns late from {ask}", lambda: InThreads(ask), red(), everywhere=True)


def driver() -> FakePlugin:
    return FakePlugin("CSIPlugin", "csi.example.com", serves=[FakeCSIDriver("csi.example.com")])


SCENARIOS = (
    Scenario("plain", FakeHandler, red()),
    Scenario("listens late", FakeHandler, red(), 0.3),
    Scenario("slow", slow, red(delay=0.2)),
    Scenario("hangs in validate", hanging("validate"), red()),
    Scenario("hangs in register", hanging("register"), red()),
    Scenario("hangs in deregister", hanging("deregister"), red()),
    Scenario("refuses in validate", failing("validate"), red()),
    Scenario("fails in register", failing("register"), red()),
    Scenario("notify fails", FakeHandler, red(notify_fails=3)),
    Scenario("notify fails for ever", FakeHandler, red(notify_fails=6)),
    Scenario("GetInfo fails", FakeHandler, red(get_info_fails=1)),
    late("validate"),
    late("register"),
    late("deregister"),
    Scenario("full inboxes", failing("register"), red(), full=True, everywhere=True),
    Scenario("full inboxes and a crash", FakeHandler, red(), full=True, crashes=True, everywhere=True),
    # The plugin is asked again several times, and a link follows it.
    Scenario("observed", FakeHandler, driver, config=attrs.evolve(CONFIG, observe=True), everywhere=True),
)
