"""The lease actor as the supervisor has it: with its parts, and all that outlives its crashes."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from ...protocol.errors import ConfigError, StateError
from ...protocol.leases.cdi import CdiError
from ...protocol.leases.config import LeasesConfig
from ...protocol.leases.mapped import BUILT_IN, ResourceConfig
from ...protocol.leases.messages import Kept, LeaseRules
from ...protocol.leases.values import ProcessIdentity
from ...protocol.logs.lines import Logger
from ...protocol.values import value
from .cdi_writer import CdiStore, CdiWriter
from .inbox import LeasesInbox
from .lease_log import LeaseLog
from .memory import LeasesMemory
from .owners import BootClock, OwnerPort, Owners
from .saving import Saving
from .store import LeaseStore

if TYPE_CHECKING:
    from ...protocol.leases.book import Book
    from ..io.node_access import NodeAccess
    from .history import LeaseHistory


#: Seconds for which a node that stops waits for its last writes: what is not written is as after a kill.
SETTLE_TIMEOUT = 2.0


@value
class LeasePorts:
    """How leases reach the system: processes, clocks, and the files for container engines."""

    owners: OwnerPort
    clock: BootClock
    #: Returns the files of the daemon with this id.
    files: Callable[[str], CdiStore]
    #: Unix seconds.
    wall: Callable[[], float]
    #: 128 random bits.
    bits: Callable[[], int]


class LeaseUnit:
    """The lease actor of one node. Its :attr:`inbox` is the address of callers and of the devices actor."""

    def __init__(
        self,
        store: LeaseStore,
        ports: Callable[[], LeasePorts],
        config: LeasesConfig,
        log: Logger,
        *,
        operators: frozenset[int],
        resources: Mapping[str, ResourceConfig] = BUILT_IN,
        access: NodeAccess,
        closed: str | None = None,
        history: LeaseHistory | None = None,
    ) -> None:
        """Keep in ``store`` what is to outlive a restart; ``ports`` are opened with it.

        ``access`` is who may open device nodes. No lease is given if there is a reason in ``closed``.
        """
        self.inbox = LeasesInbox()
        self._store = store
        self._open_ports = ports
        self._ports: LeasePorts | None = None
        self._cdi_store: CdiStore | None = None
        self._rules = _rules_of(config, operators, resources)
        #: Whose plugins may say anything: root's, and those of the user of the daemon.
        self._privileged = operators
        self._access = access
        self._closed = closed
        self._saving = Saving(store, self.inbox, log)
        #: None if none is kept.
        self.history = history
        self._log = LeaseLog(log, self._wall)
        self._logger = log
        #: What outlives a crash of the actor.
        self.memory = LeasesMemory()
        #: What was found at the start, until the actor has taken it.
        self._kept: Kept | None = Kept()
        self._numbers = itertools.count(1)

    def _wall(self) -> float:
        assert self._ports is not None, "it was opened"
        return self._ports.wall()

    async def open(self) -> None:
        """Open the store, before anything is done for which two daemons must not share it.

        Raises:
          ConfigError: if the store is another daemon's.
        """
        kept = self._kept = await self._saving.open()
        self._access.begin(kept.leases, kept.withheld)
        self._ports = ports = self._open_ports()
        self._log.show_other_boot(kept)  # The store may have dropped them by now, and the start may yet fail.
        self._owners = Owners(ports.owners, ports.clock, self.inbox)
        self._files = CdiWriter(self._find_cdi_store, self.inbox, self._logger)
        self.inbox.problem = self._problem
        if self._store.lasting and self._saving.is_read:  # Otherwise the actor does it when they are read.
            await self._files.clean([lease.cdi_name for lease in kept.leases if lease.cdi_name is not None])

    def _problem(self) -> str | None:
        saving = self._saving
        return self.memory.withheld or saving.problem or saving.drain_problem or self._files.problem

    async def _find_cdi_store(self) -> CdiStore:
        """Return what has the CDI files; their names have the id of this daemon, which the store of leases knows."""
        assert self._ports is not None, "it was opened"
        if self._cdi_store is None:
            try:
                instance = await self._store.instance()
            except (StateError, ConfigError) as error:
                raise CdiError(f"its name has the id of this plugind, which is not known: {error}") from error
            if instance is None:
                raise CdiError("its name has the id of this plugind, which could not be written to the state yet")
            if self._cdi_store is None:  # Several may have asked for the id at once.
                self._cdi_store = self._ports.files(instance)
        return self._cdi_store

    @property
    def parts(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """The tasks, by name, in the order of their start; each runs until cancelled, and again after a crash."""
        return {
            "lease store": self._saving.run,
            "lease owners": self._owners.run,
            "CDI files": self._files.run,
            "leases": self._run,
            **({} if self.history is None else {"lease history": self.history.run}),
        }

    async def _run(self) -> None:
        if self._kept == Kept() and not self._store.lasting:
            # Nothing is known before the first message. Most nodes without a state get none, and need no book.
            await self.inbox.wait()
        from .actor import LeaseActor

        actor = LeaseActor(
            self.inbox,
            self._new_book(),
            self._saving,
            self._owners,
            self._files,
            self._access,
            self.memory,
            self._log,
            self.history,
        )
        kept, self._kept = self._kept, None
        if kept is None:
            actor.start_again()
        else:
            await actor.start(kept)
        await actor.run()

    @property
    def own_process(self) -> ProcessIdentity:
        """This process, as the owner of a lease.

        Raises:
          RuntimeError: if the node was not started.
        """
        if self._ports is None:
            raise RuntimeError("the node was not started: use it as an async with block")
        return self._ports.owners.identity(os.getpid())

    def serve(self, directories: Sequence[str]) -> None:
        """From now on all sockets of plugins are in these directories.

        Raises:
          ConfigError: if leases that the store has not may be held of devices in one that is new.
        """
        self._store.serve(directories)

    def reconfigure(
        self, config: LeasesConfig, operators: frozenset[int], resources: Mapping[str, ResourceConfig]
    ) -> None:
        """Give devices by the pools, limits, operators, permits and resources of another configuration from now on.

        The ``operators`` are those that are not configured.
        """
        self._rules = _rules_of(config, operators, resources)
        self.inbox.send_nowait(self._rules)

    def _new_book(self) -> Book:
        from ...protocol.leases.book import Book, Sources

        assert self._ports is not None, "it was opened"
        sources = Sources(self._ports.wall, self._ports.clock.now, self._ports.bits)
        return Book(
            self.inbox,
            sources,
            self._rules,
            privileged=self._privileged,
            closed=self._closed,
            numbers=self._numbers,
        )

    async def settle(self) -> None:
        """Wait until all is written that the actor has decided, for a few seconds."""
        with trio.move_on_after(SETTLE_TIMEOUT):
            await self._saving.settle()
            if self.history is not None:
                await self.history.settle()

    def close(self) -> None:
        """Let go of the store, and of all processes."""
        self._store.close()
        if self.history is not None:
            self.history.close()
        if self._ports is not None:
            self._ports.owners.close()
            self._ports.clock.close()


def _rules_of(config: LeasesConfig, operators: frozenset[int], resources: Mapping[str, ResourceConfig]) -> LeaseRules:
    return LeaseRules(config.pools, config.limits, operators | config.operators, config.permitted, resources)
