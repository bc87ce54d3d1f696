"""Bugs of health checks, put in on purpose; see ``plugind.tests.tools.planted_bugs``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import attrs
from grpclib.exceptions import GRPCError

from plugind.actors.devices import follower as device_follower
from plugind.actors.grpc.client.channel import Channel
from plugind.actors.handlers.open_link import OpenLink
from plugind.actors.health import endpoint_checks
from plugind.actors.health.endpoint_checks import EndpointChecks
from plugind.protocol.errors import PluginError
from plugind.protocol.health import checks as health_checks
from plugind.protocol.health.checks import Checked, CheckEvent, CheckFailed, CheckPassed, HealthChecks
from plugind.protocol.messages.discovery import SocketVanished
from plugind.protocol.messages.reconciler import PluginGone, ReconcilerMessage
from plugind.protocol.plugins.health import Health
from plugind.protocol.world.effects import Effect
from plugind.protocol.world.worlds import World


@contextmanager
def _rule(change: Callable[[HealthChecks], HealthChecks]) -> Iterator[None]:
    """Check the endpoints by another rule."""
    of_type = HealthChecks.of_type
    with patch.object(HealthChecks, "of_type", lambda self, plugin_type: change(of_type(self, plugin_type))):
        yield


@contextmanager
def _steps(change: Callable[[Checked, CheckEvent, Checked], Checked]) -> Iterator[None]:
    """Let ``change(before, event, after)`` say what is known after each step of the checks."""

    def changed(rule: HealthChecks, before: Checked, event: CheckEvent) -> Checked:
        return change(before, event, health_checks.step(rule, before, event))

    with patch.object(endpoint_checks, "step", changed):
        yield


@contextmanager
def believe_two_misses() -> Iterator[None]:
    """Two checks in a row that fail make an endpoint unhealthy."""
    with _rule(lambda rule: attrs.evolve(rule, failures=2)):
        yield


@contextmanager
def count_misses_that_are_not_in_a_row() -> Iterator[None]:
    """A success does not end the count of checks that have failed."""

    def keep(before: Checked, event: CheckEvent, after: Checked) -> Checked:
        if isinstance(event, CheckPassed) and before.health is not Health.UNHEALTHY:
            return attrs.evolve(after, failures=before.failures)
        return after

    with _steps(keep):
        yield


@contextmanager
def stay_unhealthy() -> Iterator[None]:
    """One success does not make an endpoint healthy that was unhealthy."""

    def stay(before: Checked, event: CheckEvent, after: Checked) -> Checked:
        if isinstance(event, CheckPassed) and before.health is Health.UNHEALTHY:
            return attrs.evolve(after, health=before.health, reason=before.reason, failures=before.failures)
        return after

    with _steps(stay):
        yield


@contextmanager
def check_no_more_after_a_failure() -> Iterator[None]:
    """An endpoint that has failed a check is not checked again."""

    def give_up(_: Checked, event: CheckEvent, after: Checked) -> Checked:
        return attrs.evolve(after, due=1e9) if isinstance(event, CheckFailed) else after

    with _steps(give_up):
        yield


@contextmanager
def wait_for_ever_for_an_answer() -> Iterator[None]:
    """A check has no deadline."""
    init = EndpointChecks.__init__

    def patient(self: EndpointChecks, rule: HealthChecks, *rest: Any) -> None:
        init(self, attrs.evolve(rule, deadline=1e9), *rest)

    with patch.object(EndpointChecks, "__init__", patient):
        yield


@contextmanager
def take_a_refusal_for_an_answer() -> Iterator[None]:
    """A device plugin that refuses to say its options passes its check."""
    ask = device_follower.ask_for_options

    async def be_content(channel: Channel) -> None:
        with suppress(GRPCError, PluginError):
            await ask(channel)

    with patch.object(device_follower, "ask_for_options", be_content):
        yield


@contextmanager
def deregister_what_is_unhealthy() -> Iterator[None]:
    """A plugin that has missed three checks in a row is deregistered."""
    report, handle = OpenLink.report, World.handle

    def give_up(self: OpenLink, health: Health, *args: Any, failed_checks: int = 0) -> None:
        report(self, health, *args, failed_checks=failed_checks)
        if failed_checks:
            self.gone("planted")

    def let_go(self: World, message: ReconcilerMessage, now: float) -> list[Effect]:
        vanished = isinstance(message, PluginGone) and SocketVanished(message.path, message.generation)
        return handle(self, vanished or message, now)

    with patch.object(OpenLink, "report", give_up), patch.object(World, "handle", let_go):
        yield
