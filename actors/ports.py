"""How a node reaches the system that it runs on: by default through real sockets, files and processes.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import attrs

from ..protocol.config import Config, DevicePluginDirectory, Root
from ..protocol.logs import Logger
from ..protocol.trust import Trust, Users
from .conversation import Dialer
from .devices.state import MemoryStore, StateStore
from .dial_slots import DIAL_SLOTS
from .io.descriptors import most_processes
from .io.device_directory import DeviceDirectory, RealDeviceDirectory
from .io.directory import Directory, RealDirectory
from .io.endpoints import EndpointFiles, RealEndpointFiles
from .io.grpc_client.dial import dial
from .io.grpc_client.turns import Shared
from .io.processes import Processes
from .io.state_file import StateFile
from .io.users import users_of
from .liveness import ProcessPort
from .node_paths import directories_of


def state_store(config: Config, log: Logger) -> StateStore:
    """Return the file of the node's state; without one, a store that ends with the program."""
    if config.device_plugins is None or config.state is None:
        return MemoryStore()
    return StateFile(config.state, log, serves=os.path.realpath(config.device_plugins.directory))


@attrs.frozen
class Ports:
    """How a node reaches plugins and directories: the real ones by default, simulated ones in tests."""

    dial: Dialer = dial
    directory: Callable[[Root], Directory] = attrs.field(
        default=lambda root: RealDirectory(root.path, insecure=root.insecure)
    )
    processes: Callable[[], ProcessPort] = attrs.field(default=lambda: Processes(most_processes()))
    endpoints: EndpointFiles = attrs.field(factory=RealEndpointFiles)
    #: Returns how many descriptors the process has left for dials, counted up to a number; None asks the system.
    count_descriptors: Callable[[int], int] | None = None
    #: Returns what the system says about users.
    users: Callable[[Trust], Users] = users_of
    #: How many conversations are under way at once, those that last long not counted.
    dial_slots: int = DIAL_SLOTS
    #: Opens the directory of device plugins; True if users other than root and that of the daemon may call there.
    device_directory: Callable[[DevicePluginDirectory, bool, Logger], DeviceDirectory] = RealDeviceDirectory
    #: Returns what keeps the state over a restart.
    state: Callable[[Config, Logger], StateStore] = state_store


def real_ports(config: Config) -> Ports:
    """Return the real ports, within the limits of ``config``."""
    roots, follow = [*directories_of(config)], config.follow_symlinks_inside_root
    return Ports(
        dial=partial(
            dial,
            wait_if_full=False,
            limits=config.wire_limits,
            roots=roots,
            follow_symlinks=follow,
            shared=Shared(config.wire_limits.unparsed_bytes),
        ),
        processes=lambda: Processes(most_processes(), roots=roots, follow_symlinks=follow),
        endpoints=RealEndpointFiles(tuple(roots), follow_symlinks=follow),
    )
