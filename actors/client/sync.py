"""The synchronous client of a daemon, on plain sockets: importing it loads neither Trio nor asyncio."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import attrs

from ...protocol.client.status_values import plugin_from_json
from ...protocol.leases.asked_json import LeaseBody
from ...protocol.leases.leases_json import lease_from_json
from ...protocol.leases.values import ConnectionOwner, Lease
from ...protocol.plugins.devices import ResourceStatus
from ...protocol.plugins.status import PluginStatus
from ..io.silence import PATIENCE
from . import requests
from .awaited import EXPLAIN, RECONNECT, Awaited, AwaitedDevices, AwaitedPlugins, Following
from .calls import ClientRequest, understood
from .errors import ClientError, LeaseFailedError, LeaseLostError
from .holding import HeldLease
from .lease_calls import (
    all_leases,
    allocation,
    deadline_of,
    is_unknown,
    new_id,
    own_process,
    owner_of,
    release,
    renewal,
    request_of,
)
from .paths import default_status_path
from .reaching import ANSWER_TIMEOUT, WRITING, watched
from .sync_holding import Keeper
from .sync_transport import Lines, answer, lines

if TYPE_CHECKING:
    from ...protocol.messages.reconciler import RetryAnswer

T = TypeVar("T")


@attrs.frozen(eq=False)
class SyncWatch(Generic[T]):
    """The changes of a watch, as they come."""

    _lines: Lines
    _read: Callable[[object], T]

    def close(self) -> None:
        """End the watch; another thread may do so, and the iteration is over."""
        self._lines.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while not (line := next(self._lines)):
            pass  # It is a heartbeat.
        return understood(self._read, line, self._lines.version)


class SyncClient:
    """Asks a running daemon, without Trio or asyncio; each request has a connection of its own.

    ::

        from plugind.client import SyncClient

        client = SyncClient()
        client.wait("csi.example.com")
        for plugin in client.list():
            print(plugin.name, plugin.state)

    The values are those of an embedded node, but for their times, which are Unix seconds by the clock of the daemon.
    Each method raises :class:`NoDaemonError` if no daemon answers in time, and :class:`DaemonError` if it refuses.
    """

    def __init__(self, path: str | None = None, *, timeout: float = ANSWER_TIMEOUT) -> None:
        """Choose a daemon by the path of its status socket; without one, as the commands do.

        ``timeout`` is how many seconds it may be silent.
        """
        self.path = default_status_path() if path is None else path
        self.timeout = timeout

    def list(self, name: str | None = None, *, type: str | None = None) -> tuple[PluginStatus, ...]:  # noqa: A002
        """Return all plugins, or those of a name or type."""
        return self._ask(requests.plugins(name, type))

    def describe(self, target: str) -> tuple[PluginStatus, ...]:
        """Return the plugins of a name, or the one at the path of a socket, with their facts and histories.

        Raises:
          DaemonError: with the status 404 if there is none.
        """
        return self._ask(requests.description(target))

    def devices(self, resource: str | None = None) -> tuple[ResourceStatus, ...]:
        """Return all resources with their devices, or the one of that name.

        Raises:
          DaemonError: with the status 404 if there is none of that name.
        """
        return self._ask(requests.devices(resource))

    @contextmanager
    def watch(self) -> Iterator[SyncWatch[PluginStatus]]:
        """Follow the plugins: all of them first, then each that has changed, until the daemon stops.

        ::

            with client.watch() as changes:
                for plugin in changes:
                    print(plugin.socket, plugin.state)
        """
        with lines(self.path, self._stream("/watch"), silence=self.timeout) as found:
            yield SyncWatch(found, plugin_from_json)

    def wait(self, *names: str, timeout: float = 60.0) -> None:
        """Wait until plugins of these names are registered. The daemon need not run yet.

        Raises:
          NotReadyError: if they are not within ``timeout`` seconds.
        """
        self._follow(AwaitedPlugins(names), timeout)

    def wait_for_devices(self, wanted: Mapping[str, int], *, timeout: float = 60.0) -> None:
        """Wait until each of these resources has so many healthy devices, leased or not. The daemon need not run yet.

        Raises:
          NotReadyError: if one has not within ``timeout`` seconds.
        """
        self._follow(AwaitedDevices(wanted), timeout)

    def retry(self, target: str) -> tuple[RetryAnswer, ...]:
        """Have the plugins of a name tried now, or the one of a socket; return for each socket what follows.

        Raises:
          DaemonError: with the status 404 if there is none.
        """
        return self._ask(requests.retry(target))

    def ask_for_facts(self, target: str) -> tuple[RetryAnswer, ...]:
        """Have registered plugins asked anew for what :meth:`describe` tells of them; see :meth:`retry`."""
        return self._ask(requests.retry(target, facts=True))

    # --- leases ---

    @contextmanager
    def allocate(
        self,
        resources: Mapping[str, int],
        *,
        ids: Iterable[str] = (),
        include: Iterable[str] = (),
        id: str | None = None,  # noqa: A002 - as --id
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        wait: float | None = None,
        ignore_missing: bool = False,
    ) -> Iterator[Lease]:
        """Lease devices for a block: so many of each resource, all or none.

        ::

            with client.allocate({"vendor.com/gpu": 1}, wait=60) as lease:
                print(lease.devices["vendor.com/gpu"])

        This process owns the lease: if it is killed, the devices are free. ``ids`` are exactly the devices to take, and
        ``include`` some of them; ``wait`` is how many seconds to wait in line.

        Raises:
          LeaseFailedError: if there is no such lease; ``problem`` says why, and ``holders`` who has the others.
        """
        request = request_of(
            resources, ids=ids, include=include, labels=labels, pool=pool, ignore_missing=ignore_missing
        )
        asked = LeaseBody(request, own_process(), id or new_id(), wait)
        lease = self._taken(asked, named=id is not None)
        try:
            yield lease
        except BaseException:
            self._try_to_release(lease.id)
            raise
        self._end(lease.id)

    @contextmanager
    def hold(
        self,
        resources: Mapping[str, int],
        *,
        ids: Iterable[str] = (),
        include: Iterable[str] = (),
        id: str | None = None,  # noqa: A002 - as --id
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        wait: float | None = None,
        ignore_missing: bool = False,
    ) -> Iterator[HeldLease]:
        """Lease devices for a block as :meth:`allocate` does, but let a connection own the lease, not the process.

        ::

            with client.hold({"vendor.com/gpu": 1}) as held:
                while held.lost is None and work():
                    pass

        So a program in another pid namespace can have a lease, too. The lease ends when the connection does: with the
        block, or with the process and all that it has forked. A thread of the client keeps the connection; if the
        daemon is started again, it comes back within a minute, and the lease stays. If the lease ends before the block,
        since somebody has released it, ``held.lost`` says why, and the end of the block raises an error.

        Raises:
          LeaseFailedError: if there is no such lease.
          LeaseLostError: if the lease has ended before the block.
        """
        request = request_of(
            resources, ids=ids, include=include, labels=labels, pool=pool, ignore_missing=ignore_missing
        )
        asked = LeaseBody(request, ConnectionOwner(), id, wait)
        keeper = Keeper(self.path, self.timeout, allocation(asked), deadline_of(asked))
        holding = keeper.holding
        try:
            yield holding.held
        except BaseException:
            if holding.end():
                self._try_to_release(holding.held.lease.id)
            raise
        else:
            if holding.end():
                self._end(holding.held.lease.id)
        finally:
            keeper.close()
        if holding.held.lost is not None:
            raise LeaseLostError(holding.held.lost)

    def take(
        self,
        resources: Mapping[str, int],
        *,
        pid: int | None = None,
        seconds: float | None = None,
        until_release: bool = False,
        container: bool = False,
        ids: Iterable[str] = (),
        include: Iterable[str] = (),
        id: str | None = None,  # noqa: A002 - as --id
        labels: Mapping[str, str] | None = None,
        pool: str | None = None,
        wait: float | None = None,
        ignore_missing: bool = False,
        stop_on_unhealthy: bool = False,
    ) -> Lease:
        """Lease devices for others: as :meth:`allocate`, but the lease outlives this call and this process.

        Exactly one way says until when: the end of the process ``pid``, so many ``seconds``, until somebody releases
        it, or the end of a ``container``, which gets ``plugind/lease=NAME`` with the lease's ``cdi_name`` as a CDI
        device. ``stop_on_unhealthy`` sends SIGTERM to the process when a device turns unhealthy.

        Raises:
          LeaseFailedError: if there is no such lease.
          ValueError: if it is not said in exactly one way.
        """
        owner = owner_of(pid=pid, seconds=seconds, until_release=until_release, container=container)
        request = request_of(
            resources,
            ids=ids,
            include=include,
            labels=labels,
            pool=pool,
            ignore_missing=ignore_missing,
            stop_on_unhealthy=stop_on_unhealthy,
            container=container,
        )
        asked = LeaseBody(request, owner, id, wait)
        return self._ask(allocation(asked), seconds=deadline_of(asked), patience=PATIENCE)

    def release(self, lease: str) -> None:
        """End a lease.

        Raises:
          LeaseFailedError: if there is none of that id, or it belongs to another user.
        """
        self._ask(release(lease), seconds=WRITING)

    def renew(self, lease: str) -> Lease:
        """Begin the time of a lease again that was taken for some seconds.

        Raises:
          LeaseFailedError: if there is none of that id, it has no time, or it belongs to another user.
        """
        return self._ask(renewal(lease), seconds=WRITING)

    def leases(self, prefix: str = "") -> tuple[Lease, ...]:
        """Return all leases, or those whose ids begin with ``prefix``."""
        return self._ask(all_leases(prefix)).leases

    @contextmanager
    def watch_leases(self) -> Iterator[SyncWatch[Lease]]:
        """Follow the leases as :meth:`watch` follows the plugins; one that has ended comes once more as ``gone``."""
        with lines(self.path, self._stream("/v1/leases/watch"), silence=self.timeout) as found:
            yield SyncWatch(found, lease_from_json)

    def _taken(self, asked: LeaseBody, *, named: bool) -> Lease:
        try:
            return self._ask(allocation(asked), seconds=deadline_of(asked), patience=PATIENCE)
        except BaseException as error:
            # The answer may be under way.
            if not (named or asked.id is None or isinstance(error, LeaseFailedError)):
                self._try_to_release(asked.id)
            raise

    def _try_to_release(self, lease: str) -> None:
        with suppress(ClientError):
            self.release(lease)

    def _end(self, lease: str) -> None:
        try:
            self.release(lease)
        except LeaseFailedError as error:
            if not is_unknown(error):
                raise

    # --- to ask ---

    def _ask(self, call: ClientRequest[T], *, seconds: float | None = None, patience: float = math.inf) -> T:
        return answer(self.path, call, seconds=seconds or self.timeout, silence=self.timeout, patience=patience)

    def _stream(self, path: str) -> ClientRequest[object]:
        return ClientRequest("GET", watched(path, self.timeout), lambda content: content)

    def _follow(self, awaited: Awaited, timeout: float) -> None:
        following = Following(awaited, time.monotonic() + timeout, time.monotonic)
        while not following.done:
            try:
                self._follow_once(following)
            except ClientError as error:
                following.ended(error)
            if following.done:
                return
            time.sleep(min(RECONNECT, following.left))  # There is no event for the start of a daemon.
            if not following.left:
                self._explain(following.explanation())
                raise following.error(timeout)

    def _explain(self, call: ClientRequest[None] | None) -> None:
        # What the daemon has said until the timeout stands, whatever becomes of this.
        with suppress(ClientError):
            if call is not None:
                self._ask(call, seconds=EXPLAIN)

    def _follow_once(self, following: Following) -> None:
        call = self._stream(following.awaited.path)
        with lines(self.path, call, silence=self.timeout, total=following.left) as found:
            following.begin()
            for line in found:
                if following.note(line):
                    return
