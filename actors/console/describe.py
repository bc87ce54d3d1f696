"""``plugind describe``: everything about the sockets of one plugin, or about a resource without a plugin."""

from __future__ import annotations

import argparse
import json
from urllib.parse import quote

from ...protocol.plugins.info import wrong_with_resource
from ...protocol.plugins.status import StateName
from .answers import (
    Daemon,
    Plugin,
    UnknownPluginError,
    add_daemon_arguments,
    daemon,
    plugins_in,
    resources_in,
    resources_target,
)
from .arguments import plugin_target
from .client import fetch, fetch_about
from .description import described
from .device_description import described_resource
from .device_leases import add_leases_of_plugin, leases_of
from .ending import say
from .lines import terminal_width
from .output import add_output_argument
from .refused_calls import refused_calls


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind describe``."""
    parser.description = (
        "Tell all that is known of a plugin, with the history of its states, reasons and times: of each socket that has"
        " the name. Of a resource without a device plugin, tell until when one is awaited."
    )
    parser.epilog = (
        "examples:\n  plugind describe csi.example.com\n"
        "  plugind describe /var/lib/kubelet/plugins_registry/csi.example.com-reg.sock -o json\n\n"
        "exit codes: 0 ok, 1 no plugin has that name or path, 2 usage, 69 no daemon answers, 75 it is busy"
    )
    parser.add_argument(
        "target",
        metavar="NAME|SOCKET",
        type=plugin_target,
        help="a plugin's name, or the path of its socket; its file name will do if no other has it",
    )
    add_output_argument(parser, "a list of objects, one for each socket")
    add_daemon_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Describe a plugin; return the exit code."""
    if args.output == "json":
        plugins = _plugins(daemon(args), args.target)
        say("[" + ",\n".join(map(json.dumps, plugins)) + "]\n")
    else:
        say("\n".join(_described(daemon(args), args.target)))
    return 0


def _fetch(daemon: Daemon, target: str) -> bytes:
    def asked(target: str) -> bytes:
        quoted = quote(target, safe="", errors="surrogateescape")
        return fetch(daemon, f"/plugins/{quoted}")

    return fetch_about(target, asked)


def _plugins(daemon: Daemon, target: str) -> list[Plugin]:
    plugins = plugins_in(_fetch(daemon, target))
    if any(plugin.get("device_plugin") is not None for plugin in plugins):
        leases = leases_of(daemon).leases
        for plugin in plugins:
            add_leases_of_plugin(plugin, leases)
    return plugins


def _described(daemon: Daemon, target: str) -> list[str]:
    """Return what is known of each plugin, and of a resource that is known without one."""
    try:
        plugins = _plugins(daemon, target)
    except UnknownPluginError:
        resources = _resources(daemon, target)
        if not resources:
            raise
        return resources
    shown = [described(plugin, terminal_width()) for plugin in plugins]
    is_there = any(plugin.get("state") != StateName.GONE for plugin in plugins)
    return [*shown, *([] if is_there else _resources(daemon, target))]


def _resources(daemon: Daemon, target: str) -> list[str]:
    if wrong_with_resource(target) is not None:
        return []
    try:
        resources = resources_in(fetch(daemon, resources_target(target)))
    except UnknownPluginError:
        return []
    refused = refused_calls(daemon).get(target)
    return [described_resource(resource, refused, terminal_width()) for resource in resources]
