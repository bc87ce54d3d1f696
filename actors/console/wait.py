"""``plugind wait``: waits until plugins are registered, or reports why they are not."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import suppress

import attrs

from ...protocol.health.checks import NOT_CHECKED
from ...protocol.plugins.health import Health
from ...protocol.status.json import Json
from ...protocol.text import encodable, escaped
from ..client.awaited import EXPLAIN
from . import phrases, wait_for_devices
from .answers import Daemon, Plugin, add_daemon_arguments, daemon, plugins_in
from .arguments import plugin_name
from .client import fetch, roots_to_mend
from .ending import EXIT_BUSY, EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, CommandError, complain, say
from .following import follow_until_over
from .output import add_output_argument
from .times import seconds

#: The default of ``--timeout`` in seconds.
TIMEOUT = 60.0
#: The maximum number of nameless sockets that are listed if no socket has the requested name.
MOST_NAMELESS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind wait``."""
    parser.description = (
        "Wait until plugins are registered, or resources have healthy devices. At the timeout, a line for each that is"
        " not says why. The daemon need not be up yet."
    )
    parser.epilog = (
        "examples:\n  plugind wait csi.example.com --timeout 120\n  plugind wait gpu.example.com --type DRAPlugin\n"
        "  plugind wait vendor.com/gpu --healthy\n  plugind wait --resource vendor.com/gpu=2\n\n"
        "exit codes: 0 all are there, 1 one is not at the timeout, or its type is never checked, 2 usage,\n"
        "69 no daemon answers at the timeout, 75 the daemon answers, but is too busy to tell"
    )
    parser.add_argument("names", metavar="NAME", nargs="*", type=plugin_name, help="a plugin's name")
    parser.add_argument(
        "--resource",
        action="append",
        default=[],
        metavar="R[=N]",
        type=wait_for_devices.wanted,
        help="in place of names: wait until resource R has N healthy devices (default: 1); may be repeated",
    )
    parser.add_argument(
        "--serving", action="store_true", help="registered is not enough: somebody must listen on the socket, too"
    )
    parser.add_argument(
        "--healthy",
        action="store_true",
        help="registered is not enough: the plugin must be healthy, too, as its handler reports; if the daemon does not"
        " check its type, this ends at once",
    )
    parser.add_argument("--type", type=plugin_name, help="the plugin's type, for example CSIPlugin (default: any type)")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds(0.0, 1e9),
        default=TIMEOUT,
        help="how long to wait, in seconds (default: %(default)g); 0 makes one look",
    )
    add_output_argument(
        parser, "one object, whose 'plugins' or 'resources' say of each whether it is as wanted, and why not"
    )
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Wait for plugins; return the exit code."""
    asked, began = daemon(args), time.monotonic()
    if args.resource:
        if args.names or args.type or args.serving or args.healthy:
            args.parser.error("--resource waits for devices: wait for plugins with another command")
        return wait_for_devices.run(asked, args.resource, args.timeout, as_json=args.output == "json")
    if not args.names:
        args.parser.error("nothing to wait for: give the NAME of a plugin, or --resource")
    unanswered = f"the daemon at {escaped(asked.path)} has not answered within {args.timeout:g} s"
    failure = CommandError(unanswered, EXIT_UNREACHABLE)
    waiting = WaitingForPlugins(
        list(dict.fromkeys(args.names)), args.type, failure=failure, serving=args.serving, healthy=args.healthy
    )
    _wait(asked, waiting, args.timeout)
    if args.output == "json":
        say(json.dumps({"done": waiting.done, "plugins": [_report(waiting, name) for name in waiting.names]}) + "\n")
        return waiting.exit_code
    for name in waiting.names:
        plugin = waiting.registered(name)
        if plugin is None:
            complain(waiting.why_not(name))
        elif waiting.done:
            say(_success(name, plugin, time.monotonic() - began))
    return waiting.exit_code


def _report(waiting: WaitingForPlugins, name: str) -> dict[str, Json]:
    """Return whether a plugin is as wanted, with its socket, or why it is not."""
    plugin = waiting.registered(name)
    return {
        "name": encodable(name),
        "done": plugin is not None,
        "plugin": plugin,
        "why_not": waiting.why_not(name) if plugin is None else None,
    }


def _wait(daemon: Daemon, waiting: WaitingForPlugins, timeout: float) -> None:
    if timeout == 0:
        _look(daemon, waiting)
    else:
        follow_until_over(daemon, waiting, timeout)
    if not waiting.done and waiting.failure is None:
        # This only explains: what the daemon has said until the timeout stands.
        with suppress(CommandError):
            waiting.roots = roots_to_mend(daemon._replace(timeout=EXPLAIN))


def _look(daemon: Daemon, waiting: WaitingForPlugins) -> None:
    """Take the list of plugins once."""
    try:
        for plugin in plugins_in(fetch(daemon, "/plugins")):
            waiting.note(plugin)
        waiting.failure, waiting.has_list = None, True
    except CommandError as error:
        waiting.failure = error


@attrs.define
class WaitingForPlugins:
    """The requested plugins, and the daemon's reports."""

    names: list[str]
    type: str | None
    #: Why the daemon has reported nothing, if that is the case.
    failure: CommandError | None
    #: Whether somebody must listen on the socket, too.
    serving: bool = False
    #: Whether the plugin must be healthy, too.
    healthy: bool = False
    #: Whether the daemon has sent its whole list. An older daemon does not tell, but needs only milliseconds.
    has_list: bool = False
    #: Lines about roots that cannot be used.
    roots: list[str] = attrs.field(factory=list)
    #: Every reported socket, by path.
    plugins: dict[str, Plugin] = attrs.field(factory=dict)

    @property
    def done(self) -> bool:
        """Whether all are registered."""
        return all(self.registered(name) is not None for name in self.names)

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for: all are registered, or one can never be healthy."""
        return self.done or (self.healthy and self.has_list and any(map(self._is_unchecked, self.names)))

    def _is_unchecked(self, name: str) -> bool:
        """Whether the plugins of that name are not checked, and so cannot become healthy."""
        instances = self.instances(name)
        unchecked = {plugin.get("type") for plugin in instances if _has_no_checks(plugin)}
        return bool(instances) and all(plugin.get("type") in unchecked for plugin in instances)

    def clear(self) -> None:
        """Drop the plugins that an earlier watch has reported."""
        self.plugins.clear()

    def note(self, plugin: Plugin) -> None:
        """Record a line of the watch."""
        socket = str(plugin.get("socket"))
        if plugin.get("state") == "gone":
            self.plugins.pop(socket, None)
        else:
            self.plugins[socket] = plugin

    def instances(self, name: str) -> list[Plugin]:
        """Return the sockets with the name, and with the type if one was requested."""
        return [
            plugin
            for plugin in self.plugins.values()
            if plugin.get("name") == name and self.type in (None, plugin.get("type"))
        ]

    def registered(self, name: str) -> Plugin | None:
        """Return a socket of that name that is as wanted; None if there is none."""
        return next((plugin for plugin in self.instances(name) if self._is_ready(plugin)), None)

    def _is_ready(self, plugin: Plugin) -> bool:
        serves = not self.serving or plugin.get("serving") is True
        is_healthy = not self.healthy or plugin.get("health") == Health.HEALTHY
        return plugin.get("state") in phrases.IN_USE and serves and is_healthy

    def why_not(self, name: str) -> str:
        """Return one line about why no socket of that name is as wanted."""
        wanted = "healthy" if self.healthy else "serving" if self.serving else "registered"
        unknown = self._unknown(name)
        if unknown is not None:
            return f"cannot tell whether {escaped(name)} is {wanted}: {unknown}"
        return f"{escaped(name)} is not {wanted}: {self._reason(name)}"

    @property
    def exit_code(self) -> int:
        """The exit code for the present state. One plugin that is certainly not registered decides it."""
        if self.done:
            return EXIT_OK
        missing = [name for name in self.names if self.registered(name) is None]
        if any(self._unknown(name) is None for name in missing):
            return EXIT_FAILED
        return EXIT_BUSY if self.failure is None else self.failure.code

    def _unknown(self, name: str) -> str | None:
        """Return why it is not known whether a socket has that name; None if it is known."""
        if self.failure is not None:
            return self.failure.line
        if not self.has_list and not any(plugin.get("name") == name for plugin in self.plugins.values()):
            return "the daemon has not sent its whole list yet, which may hold that name"
        return None

    def _reason(self, name: str) -> str:
        instances = self.instances(name)
        if instances:
            return "; ".join(map(self._why, instances))
        others = [plugin for plugin in self.plugins.values() if plugin.get("name") == name]
        if others:
            types = ", ".join(sorted({phrases.text(plugin.get("type")) for plugin in others}))
            return f"it is there as {types}, not as {escaped(self.type or '')}"
        return "; ".join([f"no plugin has that name{self._nameless()}", *self.roots])

    def _why(self, plugin: Plugin) -> str:
        ready = plugin.get("state") in phrases.IN_USE and not (self.serving and phrases.serves(plugin) is False)
        return _why_ill(plugin) if self.healthy and ready else _why(plugin)

    def _nameless(self) -> str:
        """Return text about sockets that may still get the name."""
        nameless = [plugin for plugin in self.plugins.values() if plugin.get("name") is None]
        if not nameless:
            return ""
        shown = "; ".join(map(_why, nameless[:MOST_NAMELESS]))
        more = len(nameless) - MOST_NAMELESS
        return f"; sockets that have not said their name: {shown}" + (f"; and {more} more" if more > 0 else "")


def _has_no_checks(plugin: Plugin) -> bool:
    """Whether the health of a registered plugin is unknown because it is not checked."""
    is_unknown = plugin.get("state") in phrases.IN_USE and plugin.get("health") == Health.UNKNOWN
    return is_unknown and str(plugin.get("health_reason")).startswith(NOT_CHECKED)


def _why_ill(plugin: Plugin) -> str:
    """Return why a registered plugin does not count as healthy."""
    socket, state = phrases.text(plugin.get("socket")), phrases.state(plugin)
    if plugin.get("health") is None:
        return f"{socket} is {state}, but its handler reports no health: wait without --healthy"
    how, why = phrases.text(plugin.get("health")), plugin.get("health_reason")
    said = "its health is unknown" if how == Health.UNKNOWN else how
    return f"{socket} is {state}, but {said}" + (f": {phrases.text(why)}" if why else "")


def _why(plugin: Plugin) -> str:
    socket = phrases.text(plugin.get("socket"))
    if plugin.get("state") in phrases.IN_USE and phrases.serves(plugin) is False:
        return f"{socket} is registered, but {phrases.text(plugin.get('not_serving') or 'does not serve')}"
    remarks = phrases.remarks(plugin)
    tries = f", attempt {plugin['attempt']}" if plugin.get("attempt") else ""
    when = plugin.get("next_try_in")
    # The cause of a crash loop says it, too.
    following = "" if when is None or "next try in" in remarks else f", next try in {phrases.duration(when)}"
    state = f"{phrases.state(plugin)}{tries}{following}"
    return f"{socket} is {state}" + (f": {remarks}" if remarks else "")


def _success(name: str, plugin: Plugin, waited: float) -> str:
    """Return one line, with the duration of the registration if it happened during the wait."""
    took, since = plugin.get("registered_in"), phrases.age(plugin)
    is_new = took is not None and isinstance(since, int | float) and since <= waited
    registered = f"was registered in {phrases.duration(took)}" if is_new else f"is {phrases.state(plugin)}"
    return f"{escaped(name)} {registered}: {phrases.text(plugin.get('socket'))}\n"
