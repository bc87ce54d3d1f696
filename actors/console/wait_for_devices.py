"""``plugind wait --resource``: waits until a resource has enough healthy devices."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from contextlib import suppress

import attrs

from ...protocol.plugins.devices import ResourceState
from ...protocol.status.json import Json
from ...protocol.text import escaped
from ..client.awaited import EXPLAIN, counted, healthy_of, too_few, unhealthy_devices
from .answers import Daemon, Plugin, resources_in
from .arguments import resource_name
from .client import fetch, roots_to_mend
from .ending import EXIT_BUSY, EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, CommandError, complain, say
from .following import follow, follow_until_over
from .refused_calls import refused_calls

#: The watch that shows resources.
WATCH = "/v1/devices/watch"
#: More devices than any list can have.
_MOST = 1_000_000


@attrs.frozen
class WantedDevices:
    """A resource, and the wanted number of healthy devices."""

    name: str
    number: int = 1


def wanted(given: str) -> WantedDevices:
    """Parse ``R`` or ``R=N``."""
    name, equals, number = given.partition("=")
    resource_name(name)
    if not equals:
        return WantedDevices(name)
    if not (number.isascii() and number.isdigit() and len(number) < 8 and 0 < int(number) <= _MOST):
        raise argparse.ArgumentTypeError(f"{number!r} is not a number of devices from 1 to {_MOST}")
    return WantedDevices(name, int(number))


def strictest(wanted: Iterable[WantedDevices]) -> list[WantedDevices]:
    """Return each resource once, with the greatest of its numbers."""
    numbers: dict[str, int] = {}
    for resource in wanted:
        numbers[resource.name] = max(resource.number, numbers.get(resource.name, 0))
    return [WantedDevices(name, number) for name, number in numbers.items()]


@attrs.define
class WaitingForDevices:
    """The wanted resources, and the daemon's reports."""

    wanted: list[WantedDevices]
    #: Why the daemon has reported nothing, if that is so.
    failure: CommandError | None
    #: Whether the daemon has sent its whole list.
    has_list: bool = False
    resources: dict[str, Plugin] = attrs.field(factory=dict)
    #: A line for each root that the daemon cannot use.
    roots: list[str] = attrs.field(factory=list)
    #: The text about the last Register call for a resource, if it was refused.
    refused: dict[str, str] = attrs.field(factory=dict)
    #: The names of devices that are not healthy.
    unhealthy: dict[str, str] = attrs.field(factory=dict)

    @property
    def done(self) -> bool:
        """Whether all have enough healthy devices."""
        return all(self.healthy(resource.name) >= resource.number for resource in self.wanted)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.done

    def healthy(self, name: str) -> int:
        """Return how many healthy devices a resource has now."""
        return healthy_of(self.resources.get(name))

    def clear(self) -> None:
        """Drop the resources that an earlier watch has reported."""
        self.resources.clear()

    def note(self, resource: Plugin) -> None:
        """Record a line of the watch."""
        name = str(resource.get("resource"))
        if resource.get("state") == ResourceState.GONE:
            self.resources.pop(name, None)
        else:
            self.resources[name] = resource

    def why_not(self, resource: WantedDevices) -> str:
        """Return one line that says why a resource has not enough healthy devices."""
        name, wanted = escaped(resource.name), counted(resource.number, "healthy device")
        if self.failure is not None:
            return f"cannot tell whether {name} has {wanted}: {self.failure.line}"
        if not self.has_list:
            return f"cannot tell whether {name} has {wanted}: the daemon has not sent its whole list yet"
        refused = [self.refused[resource.name]] if resource.name in self.refused else []
        found, unhealthy = self.resources.get(resource.name), self.unhealthy.get(resource.name)
        why = too_few(resource.name, resource.number, found, *self.roots, unhealthy=unhealthy)
        return "; ".join([why, *refused])

    @property
    def exit_code(self) -> int:
        """The exit code for the present state."""
        if self.done:
            return EXIT_OK
        if self.failure is not None:
            return self.failure.code
        return EXIT_FAILED if self.has_list else EXIT_BUSY


def run(daemon: Daemon, resources: list[WantedDevices], timeout: float, *, as_json: bool) -> int:
    """Wait until all have enough healthy devices; return the exit code."""
    unanswered = f"the daemon at {escaped(daemon.path)} has not answered within {timeout:g} s"
    waiting = WaitingForDevices(strictest(resources), CommandError(unanswered, EXIT_UNREACHABLE))
    _wait(daemon, waiting, timeout)
    if as_json:
        say(
            json.dumps({"done": waiting.done, "resources": [_report(waiting, resource) for resource in waiting.wanted]})
            + "\n"
        )
        return waiting.exit_code
    for resource in waiting.wanted:
        if waiting.healthy(resource.name) < resource.number:
            complain(waiting.why_not(resource))
        elif waiting.done:
            say(f"{escaped(resource.name)} has {counted(waiting.healthy(resource.name), 'healthy device')}\n")
    return waiting.exit_code


def _report(waiting: WaitingForDevices, resource: WantedDevices) -> dict[str, Json]:
    """Return whether a resource has the wanted devices, or why it has not."""
    healthy = waiting.healthy(resource.name)
    done = healthy >= resource.number
    return {
        "resource": resource.name,
        "done": done,
        "wanted": resource.number,
        "healthy": healthy,
        "why_not": None if done else waiting.why_not(resource),
    }


def _wait(daemon: Daemon, waiting: WaitingForDevices, timeout: float) -> None:
    if timeout == 0:
        # It makes one look, for which the daemon has the time that it may be silent.
        follow(daemon, waiting, time.monotonic() + daemon.timeout, WATCH, once=True)
    else:
        follow_until_over(daemon, waiting, timeout, WATCH)
    if not waiting.done and waiting.failure is None:
        # This only explains: what the daemon has said until the timeout stands.
        with suppress(CommandError):
            soon = daemon._replace(timeout=EXPLAIN)
            waiting.roots = roots_to_mend(soon)
            waiting.refused = refused_calls(soon)
            waiting.unhealthy = unhealthy_devices(resources_in(fetch(soon, "/v1/devices")))
