"""The configuration of a node, with all of its defaults. Times are in seconds."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import attrs

from ..backoff import Backoff, RestartIntensity
from ..checks import above_zero, at_least_one, each_instance_of, instance_of, not_negative, or_none, refusing_text
from ..discovery.device_directory import USUAL_NAME
from ..discovery.roots import Root, without_slash
from ..errors import ConfigError, ValidationError
from ..handlers.csi import CSIConfig
from ..handlers.dra import DRAConfig
from ..health.checks import HealthChecks
from ..leases.config import LeasesConfig, LeaseUsers
from ..leases.mapped import ResourceConfig, with_built_in
from ..logs.limits import LogLimits
from ..plugins.info import MAX_INSTANCES, InfoLimits, check_name, wrong_with_resource
from ..plugins.static_devices import StaticResource, check_static
from ..registration.settings import Timeouts
from ..status.metrics_config import MetricsConfig
from ..trust.users import Trust
from ..values import value
from ..wire.limits import REGISTRATION_LIMITS, WireLimits

__all__ = ["Root", "Timeouts"]  # defined elsewhere

#: The state in which an expected plugin counts.
ReadyWhen = Literal["registered", "healthy"]
#: How many characters of a wrong name are shown.
_SHOWN = 64
DEFAULT_ROOT = "/var/lib/kubelet/plugins_registry"


def _directories(paths: Iterable[str | os.PathLike[str]] | None) -> tuple[str, ...] | None:
    return None if paths is None else tuple(map(without_slash, paths))


def device_plugins_beside(roots: Iterable[str]) -> str:
    """Return the usual directory for device plugins, beside the kubelet's root of plugins."""
    registry = os.path.basename(DEFAULT_ROOT)
    beside = next((root for root in roots if os.path.basename(root) == registry), DEFAULT_ROOT)
    return os.path.join(os.path.dirname(beside), USUAL_NAME)


@value
class DevicePluginDirectory:
    """The directory in which device plugins call Register, on ``kubelet.sock``, and have their sockets.

    The sockets in it are deleted when the node starts. So it must be empty or missing, have the name
    ``device-plugins``, or have been used by plugind before.
    """

    #: An absolute path. A :class:`pathlib.Path` is converted.
    directory: str = attrs.field(converter=without_slash)
    #: Whether to take the directory of a kubelet, which must not run any more.
    take_over_kubelet: bool = False
    #: Whether others may write to it and above it, and so register plugins (fault 3).
    insecure: bool = False

    @directory.validator
    def _check_directory(self, _: object, directory: str) -> None:
        if not directory.startswith("/") or "\0" in directory:
            raise ConfigError(f"the directory for device plugins {directory!r} is not an absolute path")

    @property
    def is_usual(self) -> bool:
        """Whether it is the directory in which device plugins call a kubelet."""
        return self.directory == device_plugins_beside(())


@attrs.frozen(field_transformer=refusing_text)
class Config:
    """A node's configuration.

    Raises:
      ConfigError: if a field has another type, ``rescan`` is not a finite number above 0, ``max_instances`` is less
        than 1, no plugin can have an expected name, no resource can have the name of expected devices, or a node that
        only observes is to serve device plugins or leases, to expect devices or to keep a state.
    """

    #: The directories in which plugins are discovered; none may lie in another.
    roots: tuple[Root, ...] = attrs.field(default=(Root(DEFAULT_ROOT),), validator=each_instance_of(Root))
    #: Seconds between rescans, more than 0, with a jitter of a tenth (behaviour 14).
    rescan: float = attrs.field(default=10.0, validator=above_zero)
    #: The users who may register plugins: their processes may listen on sockets in the roots (fault 40).
    trust: Trust = attrs.field(factory=Trust, validator=instance_of(Trust))
    #: The deadlines of single steps.
    timeouts: Timeouts = attrs.field(factory=Timeouts, validator=instance_of(Timeouts))
    #: The delays between attempts to register a plugin.
    backoff: Backoff = attrs.field(factory=Backoff, validator=instance_of(Backoff))
    #: A plugin that ends within so many seconds of being told that it is registered, or that it is not, or else of its
    #: first dial, has had a short life: the next socket at its path waits, twice as long after each (fault 49). With 0
    #: no life is short. A registered life of this length also ends a row of crashes of the registration (fault 85).
    stable_after: float = attrs.field(default=10.0, validator=not_negative)
    #: How often actors can crash before the node gives up.
    intensity: RestartIntensity = attrs.field(factory=RestartIntensity, validator=instance_of(RestartIntensity))
    #: The limits of texts and lists in a plugin's GetInfo.
    info_limits: InfoLimits = attrs.field(factory=InfoLimits, validator=instance_of(InfoLimits))
    #: How many plugins can be registered under one (type, name). A further one waits as if its name was refused.
    max_instances: int = attrs.field(default=MAX_INSTANCES, validator=at_least_one)
    #: WireLimits of one connection: sizes, frames and bytes (faults 50 to 65). The defaults fit a call with one small
    #: answer, unlike ``WireLimits()``; ``attrs.evolve(Config().wire_limits, pings=10)`` changes one of them.
    wire_limits: WireLimits = attrs.field(default=REGISTRATION_LIMITS, validator=instance_of(WireLimits))
    #: Whether to deregister all plugins when the node stops (behaviour 42).
    deregister_at_stop: bool = False
    #: Whether to deregister a plugin on whose socket nobody listens, until somebody does again (fault 39).
    deregister_not_serving: bool = False
    #: Whether to notify registered plugins again after a restart. With False a plugin is not notified if its info, its
    #: socket and the process that listens are those of its last notification; the state directory has these.
    renotify: bool = True
    #: Whether to observe only, beside a kubelet that registers the plugins: they are asked for their info and health,
    #: and are told nothing. No root is made or locked.
    observe: bool = False
    #: In observe mode, the seconds after which a plugin is asked for its info again, with a jitter of a fifth. None
    #: asks each socket once.
    observe_again: float | None = attrs.field(default=60.0, validator=or_none(above_zero))
    #: Whether to be as strict with plugins as the kubelet: it does not open an ended stream of device lists again until
    #: the plugin registers anew, and refuses a CSI driver without NodeGetInfo.
    strict: bool = False
    #: Whether to accept symbolic links that resolve to a socket inside their root (behaviour 7).
    follow_symlinks_inside_root: bool = False
    #: The directories in which endpoints may lie that are not the plugin's own socket (fault 43). None: each root and,
    #: beside a root named ``plugins_registry``, the usual ``plugins``, ``csi-plugins`` and ``device-plugins``.
    endpoint_directories: tuple[str, ...] | None = attrs.field(default=None, converter=_directories)
    #: The directory in which device plugins can register by a call, as nearly all do. None: nowhere.
    device_plugins: DevicePluginDirectory | None = attrs.field(
        default=None, validator=or_none(instance_of(DevicePluginDirectory))
    )
    #: The resources whose devices are device nodes of the machine, which need no plugin.
    devices: Mapping[str, StaticResource] = attrs.field(factory=dict)
    #: What leases of a resource get: limits of users, and variables made of those that its device plugin sets, of which
    #: some are built in.
    resources: Mapping[str, ResourceConfig] = attrs.field(factory=dict, converter=with_built_in)
    #: The users who may serve a plugin type from another process, besides root and the user of the daemon. Plugins of
    #: these types wait for such a process, and are told nothing until then.
    handler_uids: Mapping[str, frozenset[int]] = attrs.field(factory=dict)
    #: The seconds after which the plugins of a type are deregistered while no process serves it; forever, if the type
    #: is not named.
    handler_grace: Mapping[str, float] = attrs.field(factory=dict)
    #: How the endpoints of registered plugins are checked, and which types are not checked.
    health_checks: HealthChecks = attrs.field(factory=HealthChecks, validator=instance_of(HealthChecks))
    #: How DRA drivers are used: when one is gone, and which drivers' device health is watched.
    dra: DRAConfig = attrs.field(factory=DRAConfig, validator=instance_of(DRAConfig))
    #: How CSI drivers are asked about the node.
    csi: CSIConfig = attrs.field(factory=CSIConfig, validator=instance_of(CSIConfig))
    #: The names of plugins without which the node is not ready (behaviour 40).
    expected: tuple[str, ...] = attrs.field(default=())
    #: The number of healthy devices of each resource without which the node is not ready (behaviour 40).
    expected_devices: Mapping[str, int] = attrs.field(factory=dict)
    #: Whether an expected plugin must be healthy, or only ``registered``, for the node to be ready.
    ready_when: ReadyWhen = attrs.field(default="registered")
    #: An actor hangs when messages wait for it and it has taken none for this time; the node is then not ready, and its
    #: health is ``failed``. No actor works that long between two messages. None disables the check.
    hung_after: float | None = attrs.field(default=10.0, validator=or_none(above_zero))
    #: The loop is blocked when it has not turned for this time: the log, the health and a metric report it with the
    #: handler (fault 83). None disables the check.
    blocked_after: float | None = attrs.field(default=1.0, validator=or_none(above_zero))
    #: Whether the program handles SIGINT, as ``plugind run`` does. Then a :exc:`KeyboardInterrupt` from a handler is an
    #: error like any other, and fails the call. Otherwise it can come from Ctrl-C, and ends the block of the node; the
    #: log names the handler.
    handles_sigint: bool = False
    #: The directory of the file that keeps the leases and the awaited resources over a restart. None: there is no file.
    state: str | None = None
    #: Who may lease which devices of device plugins.
    leases: LeasesConfig = attrs.field(factory=LeasesConfig, validator=instance_of(LeasesConfig))
    #: The address on which metrics are served by HTTP over TCP, besides the status socket; by default none.
    metrics: MetricsConfig = attrs.field(factory=MetricsConfig, validator=instance_of(MetricsConfig))
    #: How many log lines each socket, root, actor or user gets, and all together. None: no limits.
    log_limits: LogLimits | None = attrs.field(factory=LogLimits, validator=or_none(instance_of(LogLimits)))
    #: The seed of the jitter of backoff and rescans. None takes one from the system.
    seed: int | None = None

    def __attrs_post_init__(self) -> None:
        if not self.observe:
            return
        if self.device_plugins is not None:
            raise ConfigError("--observe never serves kubelet.sock: leave out --device-plugins")
        leases = self.leases
        if leases.pools or leases.operators or leases.users != LeaseUsers():
            raise ConfigError("--observe leases no devices: leave out --pool, --lease-uids and --lease-group")
        if self.expected_devices or self.devices:
            raise ConfigError("--observe offers no devices: leave out --expect-devices and --devices")
        if self.handler_uids or self.handler_grace:
            raise ConfigError("--observe has no handlers: leave out handler_uids and handler_grace")
        if self.state is not None:
            raise ConfigError("--observe keeps no state: leave out --state")

    @endpoint_directories.validator
    def _check_endpoint_directories(self, _: object, directories: tuple[str, ...] | None) -> None:
        for path in directories or ():
            if not path.startswith("/") or "\0" in path:
                raise ConfigError(f"the directory for endpoints {path!r} is not an absolute path: see --endpoint-dir")

    @ready_when.validator
    def _check_ready_when(self, _: object, word: str) -> None:
        if word not in get_args(ReadyWhen):
            raise ConfigError(f"Config.ready_when is {word!r}: it must be 'registered' or 'healthy' (--ready-when)")

    @expected.validator
    def _check_expected(self, _: object, names: tuple[str, ...]) -> None:
        for name in names:
            try:
                check_name(name, self.info_limits)
            except ValidationError as error:
                raise ConfigError(f"no plugin can have the expected name {name[:_SHOWN]!a}: {error}") from None

    @devices.validator
    def _check_devices(self, _: object, resources: Mapping[str, StaticResource]) -> None:
        check_static(resources)

    @expected_devices.validator
    def _check_expected_devices(self, _: object, numbers: Mapping[str, int]) -> None:
        for name, number in numbers.items():
            if (why := wrong_with_resource(name)) is not None:
                raise ConfigError(f"no resource can have the name of expected devices {name[:_SHOWN]!a}: {why}")
            if number < 1:
                raise ConfigError(f"{number} devices of {name} are expected: it must be 1 or more")


def check_roots(roots: tuple[Root, ...]) -> None:
    """Check the roots of a configuration.

    Raises:
      ConfigError: if there is none, one is not an absolute path or is named twice, or one lies in another.
    """
    if not roots:
        raise ConfigError("there is no root to discover plugins in: name one with --root")
    for root in roots:
        if not root.path.startswith("/"):
            raise ConfigError(f"the root {root.path!r} is not an absolute path")
    for root, other in itertools.permutations(roots, 2):
        if other.path == root.path:
            raise ConfigError(f"the root {root.path} is named twice: name it once")
        if (other.path + "/").startswith(root.path.rstrip("/") + "/"):
            raise ConfigError(f"the root {other.path} lies in the root {root.path}: name one of them")


def check_renotify(config: Config) -> None:
    """Check that a node that does not notify plugins again has a place that says who was notified.

    Raises:
      ConfigError: if it has none.
    """
    if not config.renotify and config.state is None:
        raise ConfigError("renotify = false needs a state, which says who was notified: name a directory with --state")
