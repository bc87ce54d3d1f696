"""``plugind run``: one node as a daemon, from its configuration until a signal stops it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import NoReturn, Protocol, get_args

import trio

from ...protocol.config import (
    DEFAULT_ROOT,
    Config,
    DevicePluginDirectory,
    ReadyWhen,
    Root,
    Timeouts,
    device_plugins_beside,
)
from ...protocol.csi import CSIConfig
from ...protocol.dra import DRAConfig, WatchedHealth
from ...protocol.endpoints import default_directories
from ...protocol.errors import ConfigError, SocketBusyError, leaves
from ...protocol.health_checks import ALL_TYPES, HealthChecks
from ...protocol.logs import Format, Level
from ...protocol.metrics_config import MetricsConfig
from ...protocol.plugins import BUILT_IN_TYPES, MAX_INSTANCES
from ...protocol.trust import Trust
from ...protocol.version import __version__
from ...supervisor import NodeEndedError, Supervisor
from ..handlers.registry import installed_handlers
from ..io.descriptors import raise_descriptor_limit
from ..io.roots import RootBusyError
from ..logs import Log
from ..status.actor import StatusConfig
from ..supervision import GaveUpError
from .arguments import add_csi_arguments, add_trust_argument, health_switch, plugin_name, typed_seconds
from .ending import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, CommandError, complain
from .lease_options import add_lease_arguments, leases_from
from .service_manager import Observed, keep_informed, tell_service_manager, tell_surely
from .signals import Answering, StopLimit, answer, received
from .status_socket import add_status_argument, status_path
from .times import seconds
from .typed_options import warn_of_types

#: What a daemon needs once it has plugins or clients. It is loaded as soon as the daemon is ready, so that nobody waits
#: for it, and that what is installed later is not mixed with what runs. It is loaded piece by piece, with turns for
#: others between them; the longest piece, protobuf, takes 10 ms.
LOADED_WHEN_READY = (
    "google.protobuf.descriptor_pool",
    "...protocol.proto.pluginregistration_pb2",
    "..handlers.csi_follower",
    "..handlers.csi_ranking",
    "..handlers.device_follower",
    "...protocol.proto.deviceplugin_v1beta1_grpc",
    "..handlers.dra_driver",
    "..handlers.dra_calls",
    "..leases.actor",
    "..io.http_server",
    "..status.serving",
)

_EPILOG = """examples:
  plugind run
  plugind run --root /tmp/plugins --status /tmp/plugind.sock --log-format json
  PLUGIND_ROOT=/tmp/a:/tmp/b plugind run --rescan 30

SIGTERM and SIGINT stop it gracefully: what is in flight finishes or is rolled back. A second one stops it at once.
SIGHUP scans all roots at once; there is no configuration file to read again. SIGUSR1 logs the state of every plugin.

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
        default=[],
        metavar="DIR",
        help="a root in a deprecated place: its plugins are registered with a warning, if their handler permits it",
    )
    parser.add_argument(
        "--rescan",
        type=seconds(0.01, 86_400.0),
        default=10.0,
        metavar="SECONDS",
        help="seconds between two scans of every root (10)",
    )
    parser.add_argument(
        "--stable-after",
        type=seconds(0.0, 86_400.0),
        default=10.0,
        metavar="SECONDS",
        help="a plugin that ends so soon after it was told yes or no, or after it was dialed, counts as crashed: the"
        " next one at its path waits, twice as long after each (10; 0 lets none wait)",
    )
    parser.add_argument(
        "--expect",
        action="append",
        default=[],
        type=plugin_name,
        metavar="NAME",
        help="not ready before this plugin is registered",
    )
    parser.add_argument(
        "--ready-when",
        choices=get_args(ReadyWhen),
        default="registered",
        help="when the plugins of --expect count: once they are registered, or only while they are healthy, too"
        " (registered)",
    )
    parser.add_argument(
        "--max-instances",
        type=int,
        default=MAX_INSTANCES,
        metavar="N",
        help=f"how many plugins may be registered under one name; more wait until one goes ({MAX_INSTANCES})",
    )
    parser.add_argument(
        "--blocked-after",
        type=seconds(0.05, 3600.0),
        default=1.0,
        metavar="SECONDS",
        help="report what blocks the daemon for so long, as a handler with a bug does (1)",
    )
    parser.add_argument(
        "--handler-timeout",
        action="append",
        default=[],
        type=typed_seconds(0.1, 86_400.0),
        metavar="[TYPE=]SECONDS",
        help="end a call of a handler, or of the one for this plugin type, after so long; may be repeated"
        f" ({Timeouts().handler:g}; {', '.join(f'{name}={time:g}' for name, time in Timeouts().handlers.items())})",
    )
    parser.add_argument(
        "--health",
        action="append",
        default=[],
        type=health_switch,
        metavar="[TYPE=]off|SECONDS",
        help="do not check the endpoints of plugins, or those of this type; or check them every so many seconds"
        f" ({HealthChecks().period:g}); may be repeated",
    )
    parser.add_argument(
        "--dra-health",
        choices=get_args(WatchedHealth),
        default="advertised",
        help="watch the health of the devices of DRA drivers that announce a service for it, or try others, too"
        " (advertised)",
    )
    parser.add_argument(
        "--deregister-at-stop", action="store_true", help="deregister every plugin when stopping (default: none)"
    )
    parser.add_argument(
        "--deregister-not-serving",
        action="store_true",
        help="deregister a plugin on whose socket nobody listens any more, until somebody does (default: it is shown)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="as the kubelet, do not open the stream of a device plugin's lists again once it has ended, until the"
        " plugin registers anew, and refuse a CSI driver that does not implement NodeGetInfo (default: the stream is"
        " opened again while the plugin is registered, and such a driver has no node id)",
    )
    add_csi_arguments(parser)
    add_trust_argument(parser)
    parser.add_argument(
        "--insecure-root",
        action="store_true",
        help="accept roots, and directories below them, that others may write to: they may register plugins",
    )
    parser.add_argument(
        "--endpoint-dir",
        action="append",
        default=[],
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
        " (without DIR: device-plugins beside the kubelet's root)",
    )
    parser.add_argument(
        "--take-over-kubelet",
        action="store_true",
        help="use the directory of --device-plugins although a kubelet has used it; none must run on this machine",
    )
    parser.add_argument(
        "--state",
        metavar="DIR",
        help="where the file is that keeps what must outlive a restart, such as leases; it is made (default:"
        " $PLUGIND_STATE, or /var/lib/plugind for root, and $XDG_STATE_HOME/plugind for others; none without"
        " --device-plugins)",
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
        default=[],
        metavar="NAME",
        help="answer requests to the address of --metrics for this host, too; may be repeated (default: localhost, and"
        " IP addresses)",
    )
    parser.add_argument(
        "--metrics-path-labels",
        action="store_true",
        help="label plugin_manager_total_plugins by socket path, as the kubelet does (default: totals only)",
    )
    parser.add_argument(
        "--log-format", choices=[form.value for form in Format], default="text", help="the format of log lines (text)"
    )
    parser.add_argument(
        "--log-level", choices=[level.name.lower() for level in Level], default="info", help="what is logged (info)"
    )
    add_status_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Run the daemon until a signal stops it; return the exit code.

    Raises:
      CommandError: if the daemon cannot start, or gave up.
    """
    try:
        trio.run(run_daemon, args, config_from(args, os.environ))
    except (ConfigError, RootBusyError, GaveUpError, ExceptionGroup) as error:
        foreseen = [leaf for leaf in leaves(error) if isinstance(leaf, ConfigError | RootBusyError | GaveUpError)]
        if not foreseen:
            raise
        raise CommandError(str(foreseen[0]), _exit_code(foreseen[0])) from error
    return EXIT_OK


def _exit_code(error: BaseException) -> int:
    """Return 78 for what only another configuration cures, and 1 for what may be over at the next start."""
    return EXIT_CONFIG if isinstance(error, ConfigError) and not isinstance(error, SocketBusyError) else EXIT_FAILED


def config_from(args: argparse.Namespace, environment: Mapping[str, str]) -> Config:
    """Return the configuration from the command line and the environment; the command line takes precedence.

    Raises:
      ConfigError: if the path of a root is empty, no plugin can have an expected name, or metrics can have no such
        address.
    """
    named = args.root or [path for path in environment.get("PLUGIND_ROOT", "").split(":") if path]
    insecure = args.insecure_root
    # Device plugins that register by a call need no root, so nothing is wrong if there is no kubelet's.
    optional = not named and args.device_plugins is not None
    paths = dict.fromkeys(named or [DEFAULT_ROOT])
    roots = [Root(_root_path(path), insecure=insecure, optional=optional) for path in paths]
    roots += [
        Root(_root_path(path), deprecated=True, insecure=insecure) for path in dict.fromkeys(args.deprecated_root)
    ]
    return Config(
        roots=tuple(roots),
        rescan=args.rescan,
        stable_after=args.stable_after,
        trust=Trust(tuple(args.trust_uid)),
        timeouts=_timeouts(args.handler_timeout),
        health_checks=_health_checks(args.health),
        dra=DRAConfig(health=args.dra_health),
        expected=tuple(args.expect),
        ready_when=args.ready_when,
        max_instances=args.max_instances,
        blocked_after=args.blocked_after,
        use_faulthandler=True,
        handles_sigint=True,
        deregister_at_stop=args.deregister_at_stop,
        deregister_not_serving=args.deregister_not_serving,
        strict=args.strict,
        csi=CSIConfig(args.csi_refresh, args.csi_topology),
        device_plugins=_device_plugins(args, roots),
        state=_state(args, environment),
        leases=leases_from(args),
        metrics=_metrics(args),
        endpoint_directories=(
            *default_directories(root.path for root in roots),
            *map(_absolute, args.endpoint_dir),
        ),
    )


def _metrics(args: argparse.Namespace) -> MetricsConfig:
    """Return where metrics are served.

    Raises:
      ConfigError: if that is no address, or an option is given that has no use without one.
    """
    if args.metrics is None and args.metrics_host:
        raise ConfigError("--metrics-host is for the address of --metrics: add --metrics")
    return MetricsConfig(args.metrics, tuple(args.metrics_host))


def _device_plugins(args: argparse.Namespace, roots: Sequence[Root]) -> DevicePluginDirectory | None:
    """Return where device plugins call, if they may.

    Raises:
      ConfigError: if an option is given that has no use without that.
    """
    if args.device_plugins is None:
        if args.take_over_kubelet:
            raise ConfigError("--take-over-kubelet is for the directory of device plugins: add --device-plugins")
        return None
    directory = args.device_plugins or device_plugins_beside(root.path for root in roots)
    return DevicePluginDirectory(_absolute(directory), args.take_over_kubelet, args.insecure_root)


def _state(args: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    """Return the directory of the state: a daemon without device plugins has one only if it is named.

    Raises:
      ConfigError: if its name is empty.
    """
    if args.state == "":
        raise ConfigError("the path of the state is empty: name a directory with --state")
    if args.device_plugins is None and args.state is None:
        return None
    return _absolute(args.state or environment.get("PLUGIND_STATE") or _usual_state(environment))


def _usual_state(environment: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return "/var/lib/plugind"
    home = environment.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "plugind")


def _timeouts(given: Sequence[tuple[str | None, float]]) -> Timeouts:
    defaults = Timeouts()
    by_type = {plugin_type: time for plugin_type, time in given if plugin_type is not None}
    others = [time for plugin_type, time in given if plugin_type is None]
    return Timeouts(handler=(others or [defaults.handler])[-1], handlers={**defaults.handlers, **by_type})


def _health_checks(given: Sequence[tuple[str, float | None]]) -> HealthChecks:
    """Return how endpoints are checked; of several words for one type the last one counts."""
    periods = dict(given)
    period = periods.pop(ALL_TYPES, HealthChecks().period)
    off = {plugin_type for plugin_type, seconds in periods.items() if seconds is None}
    by_type = {plugin_type: seconds for plugin_type, seconds in periods.items() if seconds is not None}
    if period is None:
        return HealthChecks(off={ALL_TYPES, *off}, periods=by_type)
    return HealthChecks(period, off=off, periods=by_type)


def _root_path(path: str) -> str:
    if not path:
        raise ConfigError("the path of a root is empty: name a directory with --root")
    return _absolute(path)


def _absolute(path: str) -> str:
    return os.path.abspath(path)


def log_from(args: argparse.Namespace) -> Log:
    """Return the log on standard error as the command line configures it."""
    return Log(Level[args.log_level.upper()], Format(args.log_format))


class Node(Answering, Observed, Protocol):
    """The node that a daemon runs; it runs for as long as its ``async with`` block."""

    async def __aenter__(self) -> object:
        """Start it."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        """Stop it."""

    async def wait_scanned(self) -> None:
        """Return once a scan of each root was tried, which is after the status socket listens."""


async def serve(node: Node, log: Log, config: Config, status: str, limit: StopLimit | None = None) -> None:
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
                    nursery.start_soon(_announce, node, log)
                    nursery.start_soon(answer, requests, node, log, stop)
                    await stop.wait()
            log.event(Level.INFO, "stopped")
            nursery.cancel_scope.cancel()


async def _stop_on_signal(stops: AsyncIterator[int], log: Log, stop: trio.Event, everything: trio.CancelScope) -> None:
    number = await anext(stops)
    log.event(Level.INFO, "stopping", signal=signal.Signals(number).name)
    tell_service_manager("STOPPING=1")
    stop.set()
    await anext(stops)
    log.event(Level.WARNING, "stopping at once")
    everything.cancel()


async def _announce(node: Node, log: Log) -> None:
    """Notify the service manager that the daemon is ready: a scan of each root was tried (behaviour 40)."""
    with suppress(NodeEndedError):
        await node.wait_scanned()
        await tell_surely("READY=1")
        for name in LOADED_WHEN_READY:
            import_module(name, __package__)
            await trio.lowlevel.checkpoint()
        await keep_informed(node, log)


@contextmanager
def _gives_up_aloud(log: Log) -> Iterator[None]:
    """Log the error that ends a node; at the end of the process, the same text is its last line."""
    try:
        yield
    except GaveUpError as error:
        log.event(Level.ERROR, "gave up", error=str(error))
        raise


def tune_gc() -> None:
    """Collect cyclic garbage less often, and exclude imported objects.

    A storm creates hundreds of thousands of long-lived objects and hardly any cycles. With the default thresholds the
    collector took a seventh of all CPU time to examine them again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def stop_limit(timeouts: Timeouts, end: Callable[[float], None]) -> StopLimit:
    """Return when the process is ended by force: the node has its grace, and as much for the rest.

    A node that can run ends within its grace. Only code that blocks the loop, or a task that cannot be cancelled, makes
    it take longer.
    """
    seconds = 2 * timeouts.stop_grace
    return StopLimit(seconds, partial(end, seconds))


def end_by_force(node: Supervisor, log: Log, seconds: float) -> NoReturn:
    """End a process whose node has not stopped, and say what has not ended. Nothing else ends a shielded task."""
    unfinished = node.unfinished()
    actors, calls = ", ".join(unfinished.actors), ", ".join(unfinished.calls)
    log.event(Level.ERROR, "the node does not stop", seconds=seconds, calls=calls or None, actors=actors)
    log.write_now()
    complain(f"the node did not stop within {seconds:g} s, because of {calls or actors}")
    os._exit(EXIT_FAILED)


async def run_daemon(args: argparse.Namespace, config: Config) -> None:
    """Run one node until a signal ends it."""
    # First, since the node bounds its conversations by the limit that it finds.
    raise_descriptor_limit()
    log = log_from(args)
    status = status_path(args)
    status_config = StatusConfig(socket=status, path_metrics=args.metrics_path_labels)
    handlers = installed_handlers()
    node = Supervisor(config, handlers=handlers, status_config=status_config, log=log)
    warn_of_types(config, {*BUILT_IN_TYPES, *handlers}, log)
    await serve(node, log, config, _absolute(status), stop_limit(config.timeouts, partial(end_by_force, node, log)))
