"""``plugind run``: one node as a daemon, from its configuration until a signal stops it."""

from __future__ import annotations

import argparse
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import NoReturn, Protocol, get_args

import trio

from ...protocol.errors import ConfigError, SocketBusyError, leaves
from ...protocol.handlers.dra import WatchedHealth
from ...protocol.health.checks import HealthChecks
from ...protocol.logs.lines import Format, Level
from ...protocol.plugins.info import BUILT_IN_TYPES, MAX_INSTANCES
from ...protocol.settings.config import DEFAULT_ROOT, Config, ReadyWhen, Timeouts
from ...protocol.values import complete_classes
from ...protocol.version import __version__
from ...supervisor import NodeEndedError, NodeSupervisor
from ..discovery.roots import RootBusyError
from ..io.config_files import DEFAULT_FILE
from ..io.descriptors import raise_descriptor_limit
from ..logs.journal import log_of
from ..logs.lines import DaemonLog
from ..node.handlers import installed_handlers
from ..node.node import Node
from ..node.supervision import GaveUpError
from ..status.actor import StatusConfig
from .arguments import (
    add_csi_arguments,
    add_trust_argument,
    devices_of_resource,
    health_switch,
    plugin_name,
    static_devices,
    typed_seconds,
)
from .configured import Configured, configured
from .ending import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, CommandError, complain
from .lease_options import add_lease_arguments, group
from .reloading import Reconfigurable, Reloader
from .service_manager import Observed, keep_informed, tell_service_manager, tell_surely
from .settings import add_settings_arguments, files_of, values_of
from .signals import Answering, StopLimit, answer, received
from .status_socket import add_status_argument
from .times import seconds
from .typed_options import warn_of_types

#: Modules that a daemon needs once it has plugins or clients. They are loaded as soon as the daemon is ready, so that
#: no plugin or client waits for them. Loading later could mix versions, or fail, because an upgrade replaces the files.
#: Other tasks run between the modules; the longest one, protobuf, takes 10 ms.
LOADED_WHEN_READY = (
    "google.protobuf.descriptor_pool",
    "...protocol.proto.pluginregistration_pb2",
    "..handlers.csi.follower",
    "..handlers.csi.ranking",
    "..devices.follower",
    "..devices.static",
    "...protocol.proto.deviceplugin_v1beta1_grpc",
    "..handlers.dra.driver",
    "..handlers.dra.calls",
    "..leases.actor",
    "difflib",
    "..http.server",
    "..status.serving",
    ".in_force",
    "...protocol.settings.files",
)
#: Modules for observe mode.
LOADED_TO_OBSERVE = ("..handlers.csi.observer", "..handlers.dra.observer")
#: Modules for a daemon that is scraped: 7 MiB with prometheus_client, which others load on request.
LOADED_FOR_METRICS = ("..status.exposition",)

#: Modules whose classes are then completed: those that registrations use, so that the first plugin is not slower.
USED_BY_REGISTRATIONS = frozenset(
    f"plugind.{name}"
    for name in (
        *(f"protocol.messages.{name}" for name in ("discovery", "reconciler", "registration", "liveness", "status")),
        *(f"protocol.world.{name}" for name in ("worlds", "effects", "claims", "line", "endpoint_owners")),
        *(f"protocol.registration.{name}" for name in ("failures", "following", "lives")),
        *(f"protocol.plugins.{name}" for name in ("info", "status")),
        "protocol.discovery.sockets",
        "protocol.health.liveness",
        "actors.io.unix_socket",
    )
)

_EPILOG = """examples:
  plugind run
  plugind run --root /tmp/plugins --status /tmp/plugind.sock --log-format json
  PLUGIND_ROOT=/tmp/a:/tmp/b plugind run --rescan 30

SIGTERM and SIGINT stop it gracefully: what is in flight finishes or is rolled back. A second one stops it at once.
SIGHUP, as 'plugind reload', reads the configuration again, and also scans all roots at once. SIGUSR1 logs the state of
every plugin.

/etc/plugind/plugind.toml and plugind.toml.d/*.toml beside it configure it, too: docs/configuration.md.

exit codes:
  0  a signal stopped it
  1  another process uses a root, the status socket or the port of --metrics, its actors crashed too often, or it did
     not stop within 20 seconds of a signal, since a handler goes on in a shielded cancel scope, for example
  2  wrong usage
  78 the configuration cannot work: a root is no directory, for example, or a handler cannot be loaded; or another
     process serves kubelet.sock in the directory of --device-plugins, or uses that of --state
  142 (128 and SIGALRM, which ends it) it did not stop within 21 seconds of a signal, since code blocks it: the stack of
     that code is on standard error"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind run``."""
    parser.description = "Discover plugin sockets under the roots and register each, until a signal comes."
    parser.epilog = _EPILOG
    parser.add_argument(
        "--root",
        action="append",
        metavar="DIR",
        help=f"a directory to discover plugins in, created if its parent exists; may be repeated (default: "
        f"$PLUGIND_ROOT, several separated by ':', or {DEFAULT_ROOT}, which with --device-plugins may be missing)",
    )
    parser.add_argument(
        "--deprecated-root",
        action="append",
        metavar="DIR",
        help="a root in a deprecated place: its plugins are registered with a warning, if their handler permits it",
    )
    parser.add_argument(
        "--rescan",
        type=seconds(0.01, 86_400.0),
        metavar="SECONDS",
        help="seconds between two scans of every root (10)",
    )
    parser.add_argument(
        "--stable-after",
        type=seconds(0.0, 86_400.0),
        metavar="SECONDS",
        help="a plugin that ends so soon after it was told yes or no, or after it was dialed, counts as crashed: the"
        " next one at its path waits, twice as long after each (10; 0 lets none wait)",
    )
    parser.add_argument(
        "--expect",
        action="append",
        type=plugin_name,
        metavar="NAME",
        help="not ready before this plugin is registered",
    )
    parser.add_argument(
        "--expect-devices",
        action="append",
        type=devices_of_resource,
        metavar="RESOURCE=N",
        help="not ready while the resource has fewer healthy devices, as with vendor.com/gpu=8; may be repeated",
    )
    parser.add_argument(
        "--ready-when",
        choices=get_args(ReadyWhen),
        help="when the plugins of --expect count: once they are registered, or only while they are healthy, too"
        " (registered)",
    )
    parser.add_argument(
        "--max-instances",
        type=int,
        metavar="N",
        help=f"how many plugins may be registered under one name; more wait until one goes ({MAX_INSTANCES})",
    )
    parser.add_argument(
        "--blocked-after",
        type=seconds(0.05, 3600.0),
        metavar="SECONDS",
        help="report what blocks the daemon for so long, as a handler with a bug does (1)",
    )
    parser.add_argument(
        "--handler-timeout",
        action="append",
        type=typed_seconds(0.1, 86_400.0),
        metavar="[TYPE=]SECONDS",
        help="end a call of a handler, or of the one for this plugin type, after so long; may be repeated"
        f" ({Timeouts().handler:g}; {', '.join(f'{name}={time:g}' for name, time in Timeouts().handlers.items())})",
    )
    parser.add_argument(
        "--health",
        action="append",
        type=health_switch,
        metavar="[TYPE=]off|SECONDS",
        help="do not check the endpoints of plugins, or those of this type; or check them every so many seconds"
        f" ({HealthChecks().period:g}); may be repeated",
    )
    parser.add_argument(
        "--dra-health",
        choices=get_args(WatchedHealth),
        help="watch the health of the devices of DRA drivers that announce a service for it, or try others, too"
        " (advertised)",
    )
    _switch(parser, "--deregister-at-stop", "deregister every plugin when stopping (default: none)")
    _switch(
        parser,
        "--deregister-not-serving",
        "deregister a plugin on whose socket nobody listens any more, until somebody does (default: it is shown)",
    )
    _switch(
        parser,
        "--observe",
        "observe only, beside a kubelet that registers the plugins: ask each what it is and how it is, tell it"
        " nothing, and neither make nor lock a root (default: plugins are registered)",
    )
    _switch(
        parser,
        "--strict",
        "as the kubelet, do not open the stream of a device plugin's lists again once it has ended, until the"
        " plugin registers anew, and refuse a CSI driver that does not implement NodeGetInfo (default: the stream is"
        " opened again while the plugin is registered, and such a driver has no node id)",
    )
    add_csi_arguments(parser)
    add_trust_argument(parser)
    _switch(
        parser,
        "--insecure-root",
        "accept roots, and directories below them, that others may write to: they may register plugins",
    )
    parser.add_argument(
        "--endpoint-dir",
        action="append",
        metavar="DIR",
        help="where else endpoints may be that are not the plugin's own socket, besides each root and, beside a root"
        " named plugins_registry, plugins, csi-plugins and device-plugins; repeatable",
    )
    parser.add_argument(
        "--device-plugins",
        nargs="?",
        const="",
        metavar="DIR",
        help="let device plugins register by a call on DIR/kubelet.sock, as nearly all do; the sockets in DIR are"
        " deleted at the start, so DIR must be empty or missing, named device-plugins, or used by plugind before"
        " (without DIR: device-plugins beside the kubelet's root, which is made if it is missing)",
    )
    parser.add_argument(
        "--devices",
        action="append",
        type=static_devices,
        metavar="RESOURCE=PATH,...",
        help="offer device nodes of this machine without a plugin: each that matches the path, which may have * and ?,"
        " is a device, as with 'lab/serial=/dev/ttyUSB*'; may be repeated. The configuration file says more of them",
    )
    _switch(
        parser,
        "--take-over-kubelet",
        "use the directory of --device-plugins although a kubelet has used it; none must run on this machine",
    )
    parser.add_argument(
        "--state",
        metavar="DIR",
        help="where the file is that keeps what must outlive a restart, such as leases; it is made (default:"
        " $PLUGIND_STATE, or /var/lib/plugind for root, and $XDG_STATE_HOME/plugind for others; none for a"
        " daemon that offers no devices)",
    )
    add_lease_arguments(parser)
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve metrics by HTTP at this address, too, to all who can connect; a port alone is one of 127.0.0.1"
        " (default: on the status socket alone)",
    )
    parser.add_argument(
        "--metrics-host",
        action="append",
        metavar="NAME",
        help="answer requests to the address of --metrics for this host, too; may be repeated (default: localhost, and"
        " IP addresses)",
    )
    _switch(
        parser,
        "--metrics-path-labels",
        "label plugin_manager_total_plugins by socket path, as the kubelet does (default: totals only)",
    )
    parser.add_argument("--log-format", choices=[form.value for form in Format], help="the format of log lines (text)")
    parser.add_argument("--log-level", choices=[level.name.lower() for level in Level], help="what is logged (info)")
    add_status_argument(parser)
    parser.add_argument(
        "--status-group",
        type=group,
        metavar="GID|NAME",
        help="let the members of this group ask the status socket for everything that changes nothing; it then has the"
        " mode 0660, or 0666 if --lease-group names another group",
    )
    add_settings_arguments(parser)


def _switch(parser: argparse.ArgumentParser, name: str, words: str) -> None:
    """Add an option without a value; None says that it is not given."""
    parser.add_argument(name, action="store_true", default=None, help=words)


def run(args: argparse.Namespace) -> int:
    """Run the daemon until a signal stops it; return the exit code.

    Raises:
      CommandError: if the daemon cannot start, or gave up.
    """
    try:
        read = partial(read_configuration, args, os.environ)
        trio.run(run_daemon, read(), read)
    except (ConfigError, RootBusyError, GaveUpError, ExceptionGroup) as error:
        foreseen = [leaf for leaf in leaves(error) if isinstance(leaf, ConfigError | RootBusyError | GaveUpError)]
        if not foreseen:
            raise
        raise CommandError(str(foreseen[0]), _exit_code(foreseen[0])) from error
    return EXIT_OK


def _exit_code(error: BaseException) -> int:
    """Return 78 if only another configuration can help, and 1 if the next start may succeed."""
    return EXIT_CONFIG if isinstance(error, ConfigError) and not isinstance(error, SocketBusyError) else EXIT_FAILED


def read_configuration(
    args: argparse.Namespace, environment: Mapping[str, str], default_file: str = DEFAULT_FILE
) -> Configured:
    """Return the configuration from the command line, the environment and the files, in this order of precedence.

    Raises:
      ConfigError: if it cannot work.
    """
    try:
        files = files_of(args, environment, default_file)
        return configured(values_of(args, environment, files), environment, [file.path for file in files])
    except OSError as error:
        # Paths can be relative to a working directory that is gone. At a reload that must not end the daemon.
        raise ConfigError(f"the working directory cannot be found: {error.strerror}") from error


class RunningNode(Answering, Observed, Reconfigurable, Protocol):
    """The node of a daemon. It runs for as long as its ``async with`` block."""

    async def __aenter__(self) -> object:
        """Start it."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        """Stop it."""

    async def wait_scanned(self) -> None:
        """Wait until a scan of each root was tried, which is after the status socket listens."""


async def serve(
    node: RunningNode, log: DaemonLog, config: Config, status: str, reloader: Reloader, limit: StopLimit | None = None
) -> None:
    """Run ``node`` until SIGTERM or SIGINT: the first stops it gracefully, the second at once.

    With a ``limit``, the process is ended by force at that time after the first one.
    """
    tune_gc()
    with received(limit) as (stops, requests):
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            stop = trio.Event()
            nursery.start_soon(_stop_on_signal, stops, log, stop, nursery.cancel_scope)
            with _gives_up_aloud(log):
                async with node:
                    # The status socket already answers when the log reports the start.
                    await node.snapshot()
                    roots = ", ".join(root.path for root in config.roots)
                    log.event(Level.INFO, "started", version=__version__, status=status, roots=roots, pid=os.getpid())
                    nursery.start_soon(_announce, node, log, reloader, loaded_late(config))
                    nursery.start_soon(reloader.run, node)
                    nursery.start_soon(answer, requests, node, log, stop, reloader.ask)
                    await stop.wait()
            log.event(Level.INFO, "stopped")
            nursery.cancel_scope.cancel()
    # At exit the interpreter collects garbage several times. With 10,000 plugins that takes as long as the stop.
    gc.freeze()


def loaded_late(config: Config) -> tuple[str, ...]:
    """Return the modules that a daemon with this configuration loads once it is ready."""
    to_observe = LOADED_TO_OBSERVE if config.observe else ()
    for_metrics = () if config.metrics.address is None else LOADED_FOR_METRICS
    return (*LOADED_WHEN_READY, *to_observe, *for_metrics)


async def _stop_on_signal(
    stops: AsyncIterator[int], log: DaemonLog, stop: trio.Event, everything: trio.CancelScope
) -> None:
    number = await anext(stops)
    log.event(Level.INFO, "stopping", signal=signal.Signals(number).name)
    tell_service_manager("STOPPING=1")
    stop.set()
    await anext(stops)
    log.event(Level.WARNING, "stopping at once")
    everything.cancel()


async def _announce(node: RunningNode, log: DaemonLog, reloader: Reloader, late: Iterable[str]) -> None:
    """Notify the service manager that the daemon is ready: a scan of each root was tried (behaviour 40).

    Then load the modules ``late``.
    """
    with suppress(NodeEndedError):
        await node.wait_scanned()
        await tell_surely("READY=1")
        reloader.is_announced = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_informed, node, log)
            for name in late:
                import_module(name, __package__)
                await trio.lowlevel.checkpoint()
            for _ in complete_classes(USED_BY_REGISTRATIONS):
                await trio.lowlevel.checkpoint()


@contextmanager
def _gives_up_aloud(log: DaemonLog) -> Iterator[None]:
    """Log the error that ends a node. At the end of the process, the same text is its last line."""
    try:
        yield
    except GaveUpError as error:
        log.event(Level.ERROR, "gave up", error=str(error))
        raise


def tune_gc() -> None:
    """Collect cyclic garbage less often, and exclude imported objects.

    A storm creates hundreds of thousands of long-lived objects and hardly any cycles. With the default thresholds the
    collector took a seventh of all CPU time to examine them repeatedly.

    The first threshold counts created minus freed objects. If old objects are freed, as in a storm, many more young
    ones wait for a collection. Small thresholds keep each collection short: at most 20 ms in a storm of 10,000, where
    (50,000, 20, 50) took the same CPU in all and 120 ms at once.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 5, 1_000)


def stop_limit(node: NodeSupervisor, log: DaemonLog) -> StopLimit:
    """Return when the process is ended by force: after the grace of the node, and as much time again.

    A node ends within its grace, unless code blocks the loop or a task cannot be cancelled.
    """
    return StopLimit(lambda: 2 * node.config.timeouts.stop_grace, partial(end_by_force, node, log))


def end_by_force(node: NodeSupervisor, log: DaemonLog, seconds: float) -> NoReturn:
    """End a process whose node has not stopped, and report what has not ended. Nothing else ends a shielded task."""
    unfinished = node.unfinished()
    actors, calls = ", ".join(unfinished.actors), ", ".join(unfinished.calls)
    log.event(Level.ERROR, "the node does not stop", seconds=seconds, calls=calls or None, actors=actors)
    log.write_now()
    complain(f"the node did not stop within {seconds:g} s, because of {calls or actors}")
    os._exit(EXIT_FAILED)


async def run_daemon(settings: Configured, read: Callable[[], Configured] | None = None) -> None:
    """Run one node until a signal ends it; ``read`` returns the newest settings."""
    # First, because the node bounds its conversations by this limit.
    raise_descriptor_limit()
    config = settings.config
    log = log_of(settings.log_level, settings.log_format, os.environ)
    reloader = Reloader(settings, read or (lambda: settings), log)
    status_config = StatusConfig(
        socket=settings.status,
        readers=settings.status_group,
        path_metrics=settings.metrics_path_labels,
        reload=reloader.address,
    )
    # A node that observes calls no handlers.
    handlers = {} if config.observe else installed_handlers()
    node = NodeSupervisor(Node(config, handlers, None, status_config, log))
    warn_of_types(config, {*BUILT_IN_TYPES, *handlers, *config.handler_uids, *config.handler_grace}, log)
    await serve(node, log, config, settings.status_path, reloader, stop_limit(node, log))
