"""The devices of a pool as an agent of Nomad sees them: followed while plugind runs, and kept while it does not.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import attrs
import trio

from ...protocol.leases.leases_json import lease_from_json
from ...protocol.leases.values import Lease, LeaseState, Pool
from ...protocol.nomad import (
    Listed,
    NomadError,
    chosen,
    fingerprint,
    listed,
    overlapping,
    reservation,
    statistics,
    taken,
)
from ...protocol.proto import nomad_device_pb2 as pb
from ..client.calls import Call, understood
from ..client.client import Client
from ..client.errors import ClientError, DaemonError, LeaseFailedError, NoDaemonError
from ..client.lease_calls import is_unknown, new_id
from ..client.reaching import watched
from ..client.trio_transport import lines, talking
from ..io.http_client import Lines
from .ending import complain

#: How the ids of all leases for Nomad begin.
PREFIX: Final = "nomad-"
#: Seconds until a daemon that has gone is asked again.
RECONNECT: Final = 1.0
#: Seconds for which a reservation waits until plugind runs again: a task whose reservation fails has failed for good.
PATIENT: Final = 60.0
#: Seconds for which a reservation waits for its devices, such as one that the last task has left uncertain.
WAIT: Final = 65.0
_UNKNOWN: Final = "no device plugin offers the resource"


class NomadPool:
    """Follows the devices of one pool, and leases them; :meth:`run` runs meanwhile."""

    def __init__(self, client: Client, pools: Sequence[Pool]) -> None:
        """Follow the resources of ``pools``, which all have one name, by asking with ``client``."""
        #: The name of the pool.
        self.name = pools[0].name
        self._client = client
        self._pools = tuple(pools)
        self._by_resource = {pool.resource: pool for pool in pools}
        self._offered = {pool.resource: Listed() for pool in pools}
        #: Set and replaced when something has changed.
        self._changed = trio.Event()
        #: Set once it is known what there is, or that plugind does not answer.
        self._heard = trio.Event()
        #: Why plugind does not answer; None while it does.
        self._lost: str | None = None
        #: The devices of each reservation that is under way; its event is set when it ends.
        self._reserving: dict[frozenset[tuple[str, str]], trio.Event] = {}

    async def run(self) -> None:
        """Follow the devices until cancelled."""
        while True:
            try:
                await self._follow()
                self._lose("plugind has stopped")
            except ClientError as error:
                self._lose(str(error))
            await trio.sleep(RECONNECT)

    async def fingerprint(self, last: pb.FingerprintResponse | None) -> pb.FingerprintResponse:
        """Return all devices with their health, once that is another than the ``last`` one."""
        await self._heard.wait()
        while True:
            changed = self._changed
            if (now := fingerprint(self._pools, self._offered)) != last:
                return now
            await changed.wait()

    def statistics(self) -> pb.StatsResponse:
        """Return the health of all devices now."""
        return statistics(self._pools, self._offered, time.time())

    async def reserve(self, names: Sequence[str]) -> pb.ContainerReservation:
        """Lease these devices until they are reserved again; return what the task is to have.

        Raises:
          NomadError: if Nomad cannot have them, or cannot give them to a task.
          ClientError: if plugind does not give them.
        """
        pool, ids = chosen(self._pools, names)
        async with self._in_turn(frozenset((pool.resource, it) for it in ids)):
            lease = await self._leased(pool, ids)
            try:
                return reservation(lease)
            except NomadError:
                await self._release(lease.id)
                raise

    @asynccontextmanager
    async def _in_turn(self, devices: frozenset[tuple[str, str]]) -> AsyncIterator[None]:
        """Wait for earlier reservations of any of these devices: of two at once, one would wait for the other's lease.

        A later one ends the lease of an earlier one, so it has to find that lease.
        """
        while (earlier := next((it for it in self._reserving if it & devices), None)) is not None:
            await self._reserving[earlier].wait()
        self._reserving[devices] = trio.Event()
        try:
            yield
        finally:
            self._reserving.pop(devices).set()

    async def _leased(self, pool: Pool, ids: tuple[str, ...]) -> Lease:
        """Lease devices; ask again while plugind is being started again, for one lease however often it is asked."""
        name, until = f"{PREFIX}{new_id()}", trio.current_time() + PATIENT
        while True:
            try:
                for old in overlapping(await self._client.leases(PREFIX), PREFIX, pool.resource, ids):
                    if old != name:
                        await self._release(old)
                return await self._client.take(
                    {pool.resource: len(ids)}, until_release=True, ids=ids, id=name, pool=pool.name, wait=WAIT
                )
            except NoDaemonError:
                if trio.current_time() >= until:
                    raise
                await trio.sleep(RECONNECT)

    async def _release(self, lease: str) -> None:
        try:
            await self._client.release(lease)
        except LeaseFailedError as error:
            if not is_unknown(error):
                raise

    async def _follow(self) -> None:
        """Follow the leases and the devices until one of the two streams ends.

        Raises:
          ClientError: if it ends with an error.
        """
        failed: list[ClientError] = []
        leases_listed = trio.Event()
        async with trio.open_nursery() as nursery:

            async def until_end(follow: Callable[[trio.Event], Awaitable[None]]) -> None:
                try:
                    await follow(leases_listed)
                except ClientError as error:
                    failed.append(error)
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_end, self._follow_leases)
            nursery.start_soon(until_end, self._follow_devices)
        if failed:
            raise failed[0]

    async def _follow_leases(self, leases_listed: trio.Event) -> None:
        """Follow what others have leased; set ``leases_listed`` once all that is leased now has been told."""
        others: dict[str, Lease] = {}
        async with self._lines("/v1/leases/watch") as found:
            async for line in found:
                if line:
                    lease = understood(lease_from_json, line, found.version)
                    if lease.id.startswith(PREFIX):
                        continue
                    others.pop(lease.id, None)
                    if lease.state is not LeaseState.GONE:
                        others[lease.id] = lease
                else:
                    # A heartbeat: the first one follows the list.
                    leases_listed.set()
                if leases_listed.is_set():
                    self._take(others)

    async def _follow_devices(self, leases_listed: trio.Event) -> None:
        # No device is shown as healthy before it is known who has leased it.
        await leases_listed.wait()
        unheard = set(self._by_resource)
        async with self._lines("/v1/devices/watch") as found:
            async for line in found:
                if line:
                    unheard.discard(resource := understood(_name, line, found.version))
                    await self._ask(resource)
                else:
                    self._find(unheard)
                    unheard.clear()

    @asynccontextmanager
    async def _lines(self, watch: str) -> AsyncIterator[Lines]:
        path, timeout = self._client.path, self._client.timeout
        call = Call("GET", watched(watch, timeout), lambda content: content)
        async with lines(path, call, timeout=timeout) as found:
            with talking(path):
                yield found

    def _take(self, others: Mapping[str, Lease]) -> None:
        """Note the leases of others."""
        for resource, offered in self._offered.items():
            self._note(resource, attrs.evolve(offered, taken=taken(resource, others.values())))

    def _find(self, unheard: set[str]) -> None:
        """Note that plugind has told of all that it knows, but of nothing that is ``unheard``."""
        for resource in unheard:
            self._note(resource, self._offered[resource].but_away(_UNKNOWN))
        if self._lost is not None:
            complain("plugind answers again")
        self._lost = None
        self._heard.set()

    async def _ask(self, resource: str) -> None:
        """Ask for the devices of a resource, of which the stream tells only that something has changed."""
        if (pool := self._by_resource.get(resource)) is None:
            return
        before = self._offered[resource]
        try:
            (status,) = await self._client.devices(resource)
        except DaemonError as error:
            if error.status != 404:
                raise
            self._note(resource, before.but_away(_UNKNOWN))
        else:
            self._note(resource, listed(pool, before, status))

    def _lose(self, why: str) -> None:
        """Note that plugind does not answer: its devices stay, and none can be used."""
        if self._lost is None:
            complain(f"the devices are unhealthy until plugind answers: {why}")
        self._lost = why
        for resource, offered in self._offered.items():
            self._note(resource, offered.but_away(f"plugind does not answer: {why}"))
        self._heard.set()

    def _note(self, resource: str, now: Listed) -> None:
        if now != self._offered[resource]:
            self._offered[resource] = now
            self._changed.set()
            self._changed = trio.Event()


def _name(content: object) -> str:
    """Return of which resource a line of the stream tells."""
    match content:
        case {"resource": str(name)}:
            return name
        case _:
            raise ValueError("it is no resource that this version of plugind knows")
