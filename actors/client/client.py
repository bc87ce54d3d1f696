"""The client of a daemon for programs that use Trio or asyncio; that without either is made from it in :mod:`.sync`."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

import attrs

from ...protocol.client.status_values import plugin_from_json, resource_from_json
from ...protocol.leases.asked_json import LeaseBody
from ...protocol.leases.drains import Drain, DrainTarget
from ...protocol.leases.leases_json import lease_from_json
from ...protocol.leases.values import START_WITHIN, ConnectionOwner, Lease, Request, request_of
from ...protocol.plugins.devices import ResourceState, ResourceStatus
from ...protocol.plugins.status import PluginStatus
from ..http.backends import Backend
from ..http.client import Reply
from ..io.silence import PATIENCE
from . import requests
from .awaited import EXPLAIN, RECONNECT, Awaited, AwaitedDevices, AwaitedPlugin, Following
from .calls import ClientRequest, understood
from .errors import ClientError, DaemonError, LeaseFailedError
from .holding import HeldLease, Keeper
from .lease_calls import (
    all_leases,
    allocation,
    deadline_of,
    draining,
    is_unknown,
    new_id,
    own_process,
    owner_of,
    release,
    renewal,
    undraining,
)
from .paths import default_status_path
from .reaching import ANSWER_TIMEOUT, WRITING, watched
from .transport import answer, lines

if TYPE_CHECKING:
    from ...protocol.handlers.remote import Instance
    from ...protocol.messages.reconciler import RetryAnswer
    from .serving import Serving

T = TypeVar("T")


@attrs.frozen(eq=False)
class Watch(Generic[T]):
    """The changes of a watch, as they come."""

    _reply: Reply
    _read: Callable[[object], T]

    def close(self) -> None:
        """End the watch; another task or thread may do so, and the iteration is over."""
        self._reply.hang_up()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not (line := await anext(self._reply)):
            pass  # It is a heartbeat.
        return understood(self._read, line, self._reply.version)


@attrs.frozen(eq=False)
class DevicesWatch(Watch[ResourceStatus]):
    """The resources of a watch: the stream says which one has changed, and a request of its own what it has now."""

    _devices: Callable[[str], Awaitable[tuple[ResourceStatus, ...]]]

    async def __anext__(self) -> ResourceStatus:
        while True:
            changed = await super().__anext__()
            if changed.state is ResourceState.GONE:
                return changed
            try:
                (resource,) = await self._devices(changed.name)
            except DaemonError as error:
                if error.status != _NOT_THERE:
                    raise
                continue  # It has gone since; that is a line of the stream, too.
            return resource


#: The status of an answer about a resource that is not there.
_NOT_THERE: Final = 404


class Client:
    """Asks a running daemon in a program that uses Trio or asyncio; each request has a connection of its own.

    ::

        from plugind.client import Client

        async def main() -> None:
            client = Client()
            await client.wait_for("csi.example.com")
            for plugin in await client.list():
                print(plugin.name, plugin.state)

    It has the methods of :class:`SyncClient`, with the same values and errors. It may be used by many tasks at once.
    """

    def __init__(self, path: str | None = None, *, timeout: float = ANSWER_TIMEOUT) -> None:
        """Choose a daemon by the path of its status socket; without one, as the commands do.

        ``timeout`` is how many seconds it may be silent.
        """
        self.path = default_status_path() if path is None else path
        self.timeout = timeout

    @property
    def _backend(self) -> Backend:
        from .on_anyio import ANYIO  # The synchronous client does without anyio.

        return ANYIO

    async def list(self, name: str | None = None, *, type: str | None = None) -> tuple[PluginStatus, ...]:  # noqa: A002
        """Return all plugins, or those of a name or type."""
        return await self._ask(requests.plugins(name, type))

    async def describe(self, target: str) -> tuple[PluginStatus, ...]:
        """Return the plugins of a name, or the one at the path of a socket, with their facts and histories.

        Raises:
          DaemonError: with the status 404 if there is none.
        """
        return await self._ask(requests.description(target))

    async def devices(self, resource: str | None = None) -> tuple[ResourceStatus, ...]:
        """Return all resources with their devices, or the one of that name.

        Raises:
          DaemonError: with the status 404 if there is none of that name.
        """
        return await self._ask(requests.devices(resource))

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[Watch[PluginStatus]]:
        """Follow the plugins: all of them first, then each that has changed, until the daemon stops.

        ::

            async with client.watch() as changes:
                async for plugin in changes:
                    print(plugin.socket, plugin.state)
        """
        async with self._lines("/watch") as found:
            yield Watch(found, plugin_from_json)

    @asynccontextmanager
    async def watch_devices(self) -> AsyncIterator[Watch[ResourceStatus]]:
        """Follow the resources as :meth:`watch` follows the plugins; one that has gone comes once more as ``gone``.

        ::

            async with client.watch_devices() as changes:
                async for resource in changes:
                    print(resource.name, resource.allocatable)

        Each has its devices as :meth:`devices` would return them when it is yielded. So of changes that follow each
        other quickly some are not seen; the last one always is.

        Raises:
          DaemonError: with the status 404 if the daemon has no device plugins and no static devices.
        """
        async with self._lines("/v1/devices/watch") as found:
            yield DevicesWatch(found, resource_from_json, self.devices)

    async def wait_for(
        self,
        name: str,
        *,
        type: str | None = None,  # noqa: A002 - the field's word
        timeout: float = 60.0,
    ) -> PluginStatus:
        """Wait until a plugin of that ``name`` is registered, or observed; return its status.

        The daemon need not run yet.

        Raises:
          NotReadyError: if it is not within ``timeout`` seconds.
        """
        awaited = AwaitedPlugin(name, type)
        await self._follow(awaited, timeout)
        assert awaited.registered is not None, "nothing is missing"
        return awaited.registered

    async def wait_for_devices(self, wanted: Mapping[str, int], *, timeout: float = 60.0) -> None:
        """Wait until each of these resources has so many healthy devices, leased or not. The daemon need not run yet.

        Raises:
          NotReadyError: if one has not within ``timeout`` seconds.
        """
        await self._follow(AwaitedDevices(wanted), timeout)

    async def retry(self, target: str, *, facts: bool = False) -> tuple[RetryAnswer, ...]:
        """Have the plugins of a name tried now, or the one of a socket; return for each socket what follows.

        With ``facts``, registered plugins are asked anew for what :meth:`describe` tells of them.

        Raises:
          DaemonError: with the status 404 if there is none.
        """
        return await self._ask(requests.retry(target, facts=facts))

    @asynccontextmanager
    async def serve(self, plugin_type: str, held: Iterable[Instance] = ()) -> AsyncIterator[Serving]:
        """Be the handler of a plugin type for a block.

        ::

            async with client.serve("SensorPlugin") as asks:
                async for ask in asks:
                    match ask:
                        case HandlerAsk(kind="validate") if not known(ask.instance.name):
                            await ask.refuse("it is not known here")
                        case HandlerAsk():
                            await ask.done()

        ``held`` are the instances that the handler has already, from a session before. ``docs/remote-handlers.md`` says
        what each ask means. The iteration ends when the daemon stops, and raises :exc:`ClientError` if it was killed.

        Raises:
          DaemonError: with the status 409 if the type has a handler, and 403 if this user may not serve it.
        """
        from .serving import serving

        async with serving(self._backend, self.path, plugin_type, held, self.timeout) as asks:
            yield asks

    # --- leases ---

    @asynccontextmanager
    async def allocate(
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
    ) -> AsyncIterator[Lease]:
        """Lease devices for a block: so many of each resource, all or none.

        ::

            async with client.allocate({"vendor.com/gpu": 1}, wait=60) as lease:
                print(lease.devices["vendor.com/gpu"])

        This process owns the lease. It is released also when the block is cancelled; if the process is killed, the
        devices are free. ``ids`` are exactly the devices to take, and ``include`` some of them; ``wait`` is how many
        seconds to wait in line.

        Raises:
          LeaseFailedError: if there is no such lease; ``problem`` says why, and ``holders`` who has the others.
        """
        request = request_of(
            resources, ids=ids, include=include, labels=labels, pool=pool, ignore_missing=ignore_missing
        )
        async with self._leased(request, id, wait) as lease:
            yield lease

    @asynccontextmanager
    async def hold(
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
    ) -> AsyncIterator[HeldLease]:
        """Lease devices for a block as :meth:`allocate` does, but let a connection own the lease, not the process.

        ::

            async with client.hold({"vendor.com/gpu": 1}) as held:
                print(held.lease.devices["vendor.com/gpu"])

        So a program in another pid namespace can have a lease, too. The lease ends when the connection does: with the
        block, or with the process and all that it has forked. If the daemon is started again, the connection comes back
        within a minute, and the lease stays. If the lease ends before the block, since somebody has released it,
        ``held.lost`` says why. Then the block of a :class:`Client` is cancelled, and the end of any block raises an
        error. If no daemon answers at the end of the block, nothing is raised: the lease ends with its connection.

        Raises:
          LeaseFailedError: if there is no such lease.
          LeaseLostError: if the lease has ended before the block.
        """
        request = request_of(
            resources, ids=ids, include=include, labels=labels, pool=pool, ignore_missing=ignore_missing
        )
        async with self._held(LeaseBody(request, ConnectionOwner(), id, wait)) as held:
            yield held

    async def take(
        self,
        resources: Mapping[str, int],
        *,
        pid: int | None = None,
        seconds: float | None = None,
        until_release: bool = False,
        container: bool = False,
        start_within: float = START_WITHIN,
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
        device. The container has ``start_within`` seconds to start. With ``container`` and ``until_release`` it may
        start and end at any time, until somebody releases the lease. ``stop_on_unhealthy`` sends SIGTERM to the process
        when a device turns unhealthy.

        Raises:
          LeaseFailedError: if there is no such lease.
          ValueError: if it is not said in exactly one way.
        """
        owner = owner_of(
            pid=pid, seconds=seconds, until_release=until_release, container=container, start_within=start_within
        )
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
        return await self._ask(allocation(asked), seconds=deadline_of(asked), patience=PATIENCE)

    async def release(self, lease: str) -> None:
        """End a lease.

        Raises:
          LeaseFailedError: if there is none of that id, or it belongs to another user.
        """
        await self._ask(release(lease), seconds=WRITING)

    async def renew(self, lease: str) -> Lease:
        """Begin the time of a lease again that was taken for some seconds.

        Raises:
          LeaseFailedError: if there is none of that id, it has no time, or it belongs to another user.
        """
        return await self._ask(renewal(lease), seconds=WRITING)

    async def leases(self, prefix: str = "") -> tuple[Lease, ...]:
        """Return all leases, or those whose ids begin with ``prefix``."""
        return (await self._ask(all_leases(prefix))).leases

    async def drain(
        self, resource: str | None, device: str | None = None, *, reason: str = "", until: float | None = None
    ) -> Drain:
        """Take a device, or all devices of a resource, out of service; None as the ``resource`` stands for the node.

        Nothing of the target is leased until :meth:`undrain`, or until the Unix second ``until``, and leases of it
        stay. Whoever asks for it is told the ``reason``. To drain it again gives another reason and another end.

        Raises:
          LeaseFailedError: if this user may not do that, or it cannot be written.
        """
        return await self._ask(draining(DrainTarget(resource, device), reason, until), seconds=WRITING)

    async def undrain(self, resource: str | None, device: str | None = None) -> Drain:
        """Put what :meth:`drain` took out of service back; return the drain that has ended.

        Raises:
          LeaseFailedError: if it is not drained, this user may not do that, or it cannot be written.
        """
        return await self._ask(undraining(DrainTarget(resource, device)), seconds=WRITING)

    @asynccontextmanager
    async def watch_leases(self) -> AsyncIterator[Watch[Lease]]:
        """Follow the leases as :meth:`watch` follows the plugins; one that has ended comes once more as ``gone``."""
        async with self._lines("/v1/leases/watch") as found:
            yield Watch(found, lease_from_json)

    @asynccontextmanager
    async def _leased(self, request: Request, name: str | None, wait: float | None) -> AsyncIterator[Lease]:
        id_ = name or new_id()
        asked = LeaseBody(request, own_process(), id_, wait)
        try:
            lease = await self._ask(allocation(asked), seconds=deadline_of(asked), patience=PATIENCE)
        except BaseException as error:
            # The answer may be under way. A lease that the caller has named is left to the caller.
            if name is None and not isinstance(error, LeaseFailedError):
                await self._try_to_release(id_)
            raise
        try:
            yield lease
        except BaseException:
            await self._try_to_release(lease.id)
            raise
        await self._end(lease.id)

    @asynccontextmanager
    async def _held(self, asked: LeaseBody) -> AsyncIterator[HeldLease]:
        from .on_anyio import cancelled_if_lost  # The synchronous client has another way.

        keeper = await self._kept(asked)
        async with cancelled_if_lost(keeper), self._ending(keeper):
            yield keeper.held

    async def _kept(self, asked: LeaseBody) -> Keeper:
        keeper = Keeper(self._backend, self.path, self.timeout)
        await keeper.take(allocation(asked), deadline_of(asked))
        return keeper

    @asynccontextmanager
    async def _ending(self, keeper: Keeper) -> AsyncIterator[None]:
        """End a lease with the block, if it is still held: by a request, which ends it at once, and its connection."""
        try:
            yield
        finally:
            if keeper.end():
                await self._try_to_release(keeper.held.lease.id)
            keeper.hang_up()

    async def _try_to_release(self, lease: str) -> None:
        with suppress(ClientError), self._backend.shielded():
            await self.release(lease)

    async def _end(self, lease: str) -> None:
        try:
            with self._backend.shielded():
                await self.release(lease)
        except LeaseFailedError as error:
            if not is_unknown(error):
                raise

    # --- to ask ---

    async def _ask(self, call: ClientRequest[T], *, seconds: float | None = None, patience: float = math.inf) -> T:
        return await answer(self._backend, self.path, call, timeout=seconds or self.timeout, patience=patience)

    def _lines(self, path: str, total: float = math.inf) -> AbstractAsyncContextManager[Reply]:
        call = ClientRequest("GET", watched(path, self.timeout), lambda content: content)
        return lines(self._backend, self.path, call, timeout=self.timeout, total=total)

    async def _follow(self, awaited: Awaited, timeout: float) -> None:
        backend = self._backend
        following = Following(awaited, backend.now() + timeout, backend.now)
        while not following.done:
            await self._follow_once(following)
            if following.done:
                return
            await backend.sleep(min(RECONNECT, following.left))  # There is no event for the start of a daemon.
            if not following.left:
                # What the daemon has said until the timeout stands, whatever becomes of this.
                with suppress(ClientError):
                    for call in following.explanations():
                        await self._ask(call, seconds=EXPLAIN)
                raise following.error(timeout)

    async def _follow_once(self, following: Following) -> None:
        try:
            async with self._lines(following.awaited.path, following.left) as found:
                following.begin()
                async for line in found:
                    if following.note(line):
                        return
        except ClientError as error:
            following.ended(error)
