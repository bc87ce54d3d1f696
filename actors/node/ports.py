"""The ports of a node to its system: by default real sockets, files and processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import attrs

from ...protocol.leases.cdi import Hook
from ...protocol.leases.values import ProcessIdentity
from ...protocol.logs.lines import Level, Logger
from ...protocol.settings.config import Config, DevicePluginDirectory, Root
from ...protocol.trust.users import Trust, Users
from ...protocol.values import value
from ...protocol.wire.learning import KnownConversations
from ..devices.state import MemoryStore, StateStore
from ..discovery.directory import Directory, RealDirectory
from ..grpc.client.dial import dial_registration
from ..grpc.client.turns import Shared
from ..grpc.endpoints import EndpointFiles, RealEndpointFiles
from ..health.liveness import ProcessPort
from ..io.boot_timer import BootTimer
from ..io.descriptors import most_owners, most_processes
from ..io.lease_marker import place_of_markers
from ..io.owner_processes import OwnerProcesses
from ..io.process_identity import identity_of
from ..io.processes import Processes
from ..leases.cdi_files import CdiFiles, hook_command
from ..leases.store import LeaseStore, MemoryLeaseStore
from ..leases.unit import LeasePorts
from ..registration.conversation import Dialer
from ..registration.dial_slots import DIAL_SLOTS
from ..registration.notices import MemoryNoticeStore, NoticeStore
from ..trust.users import users_of
from .paths import directories_of

if TYPE_CHECKING:
    from ..devices.directory import DeviceDirectory
    from ..io.device_nodes import NodePort
    from ..leases.history import LeaseHistory


@value
class NodeState:
    """The stores that keep the state of a node over a restart."""

    devices: StateStore
    leases: LeaseStore
    #: None if no history of leases is kept.
    history: LeaseHistory | None = None
    notices: NoticeStore = attrs.field(factory=MemoryNoticeStore)


def device_nodes() -> NodePort:
    """Return the device nodes of this machine."""
    from ..io.device_nodes import DeviceNodes

    return DeviceNodes()


def state_store(config: Config, log: Logger) -> NodeState:
    """Return the file of the node's state; without one, stores that end with the program."""
    if config.state is None:
        return NodeState(MemoryStore(), MemoryLeaseStore(name=os.urandom(16).hex()))
    # Imports a database, which a node without state does not need.
    from ..io.notice_file import NoticeFile
    from ..io.state_file import StateFile

    serves = "" if config.device_plugins is None else os.path.realpath(config.device_plugins.directory)
    if (markers := place_of_markers()) is None:
        why = "XDG_RUNTIME_DIR is not set, so that nothing outside of the state says that leases are held"
        log.event(Level.WARNING, "a loss of the state cannot be noticed", path=config.state, reason=why)
    directories, cdi = tuple(directories_of(config)), config.leases.cdi_directory
    file = StateFile(config.state, log, serves=serves, directories=directories, markers=markers, cdi=cdi)
    notices = NoticeFile(config.state, log)
    if config.leases.history.days is None:
        return NodeState(file, file, notices=notices)
    from ..io.history_file import HistoryFile
    from ..leases.history import LeaseHistory

    history = LeaseHistory(HistoryFile(config.state, config.leases.history, log), time.time, log)
    return NodeState(file, file, history, notices)


def lease_ports(config: Config, status_socket: str | None) -> LeasePorts:
    """Return the ports of leases to the system; container hooks call at ``status_socket``."""
    hook = Hook(hook_command(), "" if status_socket is None else os.path.abspath(status_socket))
    return LeasePorts(
        OwnerProcesses(most_owners()),
        BootTimer(),
        lambda instance: CdiFiles(instance, hook, directory=config.leases.cdi_directory),
        time.time,
        lambda: int.from_bytes(os.urandom(16)),
    )


def open_device_directory(where: DevicePluginDirectory, others_may_call: bool, log: Logger) -> DeviceDirectory:
    """Return the directory of device plugins."""
    # Imports a gRPC server, which no other node needs.
    from ..devices.directory import RealDeviceDirectory

    return RealDeviceDirectory(where, others_may_call, log)


@attrs.frozen
class Ports:
    """The ports to plugins and directories: real ones by default, simulated ones in tests."""

    dial: Dialer = attrs.field(factory=lambda: partial(dial_registration, conversations=KnownConversations()))
    directory: Callable[[Root], Directory] = attrs.field(
        default=lambda root: RealDirectory(root.path, insecure=root.insecure)
    )
    processes: Callable[[], ProcessPort] = attrs.field(default=lambda: Processes(most_processes()))
    endpoints: EndpointFiles = attrs.field(factory=RealEndpointFiles)
    #: Returns how many descriptors are left for dials, counted up to a number; None asks the system.
    count_descriptors: Callable[[int], int] | None = None
    #: Returns the system's answers about users.
    users: Callable[[Trust], Users] = users_of
    #: The limit of concurrent conversations, not counting those that last long.
    dial_slots: int = DIAL_SLOTS
    #: Opens the directory of device plugins; True if users other than root and the daemon's user may call there.
    device_directory: Callable[[DevicePluginDirectory, bool, Logger], DeviceDirectory] = open_device_directory
    #: Where static devices are looked for.
    nodes: Callable[[], NodePort] = attrs.field(default=device_nodes)
    #: Returns the stores that keep the state over a restart.
    state: Callable[[Config, Logger], NodeState] = state_store
    #: Returns which process has a pid now, if any.
    process_of: Callable[[int], ProcessIdentity | None] = identity_of
    #: Returns the ports of leases, given the path of the status socket.
    leases: Callable[[Config, str | None], LeasePorts] = lease_ports


def real_ports(config: Config) -> Ports:
    """Return the real ports, within the limits of ``config``."""
    follow = config.follow_symlinks_inside_root
    return Ports(
        dial=partial(
            dial_registration,
            conversations=KnownConversations(config.wire_limits),
            follow_symlinks=follow,
            shared=Shared(config.wire_limits.unparsed_bytes),
        ),
        directory=lambda root: RealDirectory(root.path, insecure=root.insecure, observe=config.observe),
        processes=lambda: Processes(most_processes(), follow_symlinks=follow),
        endpoints=RealEndpointFiles(tuple(directories_of(config)), follow_symlinks=follow),
    )
