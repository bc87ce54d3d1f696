"""The synchronous client of a daemon, on plain sockets: importing it loads neither Trio nor asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import attrs

from ...protocol.leases.asked_json import LeaseBody
from ...protocol.leases.values import ConnectionOwner, Lease, request_of
from ...protocol.plugins.devices import ResourceStatus
from ...protocol.plugins.status import PluginStatus
from ..http.backends import BLOCKING, Entered, result_of
from .client import Client, Watch
from .errors import LeaseLostError
from .holding import HeldLease
from .paths import default_status_path
from .reaching import ANSWER_TIMEOUT

if TYPE_CHECKING:
    from ...protocol.handlers.remote import Instance
    from .serving import SyncServing

P = ParamSpec("P")
T = TypeVar("T")


class _BlockingClient(Client):
    """The other client, whose methods never suspend."""

    _backend = BLOCKING

    @contextmanager
    def held(self, asked: LeaseBody) -> Iterator[HeldLease]:
        """Hold a lease for the block; a thread keeps its connection."""
        keeper = result_of(self._kept(asked))
        thread = threading.Thread(target=lambda: result_of(keeper.keep()), name="plugind lease", daemon=True)
        thread.start()
        try:
            with Entered(self._ending(keeper)):
                yield keeper.held
        finally:
            thread.join()
        if keeper.held.lost is not None:
            raise LeaseLostError(keeper.held.lost)


def _blocking(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncClient, P], T]:
    """Return a method of :class:`SyncClient` that does what one of :class:`Client` does."""

    @wraps(method)
    def called(self: SyncClient, /, *args: P.args, **more: P.kwargs) -> T:
        return result_of(method(self._client, *args, **more))

    return called


@attrs.frozen(eq=False)
class SyncWatch(Generic[T]):
    """The changes of a watch, as they come."""

    _watch: Watch[T]

    def close(self) -> None:
        """End the watch; another thread may do so, and the iteration is over."""
        self._watch.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        try:
            return result_of(anext(self._watch))
        except StopAsyncIteration:
            raise StopIteration from None


class SyncClient:
    """Asks a running daemon, without Trio or asyncio; each request has a connection of its own.

    ::

        from plugind.client import SyncClient

        client = SyncClient()
        client.wait_for("csi.example.com")
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

    @property
    def _client(self) -> _BlockingClient:
        return _BlockingClient(self.path, timeout=self.timeout)

    list = _blocking(Client.list)
    describe = _blocking(Client.describe)
    devices = _blocking(Client.devices)

    @contextmanager
    def watch(self) -> Iterator[SyncWatch[PluginStatus]]:
        """Follow the plugins: all of them first, then each that has changed, until the daemon stops.

        ::

            with client.watch() as changes:
                for plugin in changes:
                    print(plugin.socket, plugin.state)
        """
        with Entered(self._client.watch()) as found:
            yield SyncWatch(found)

    @contextmanager
    def watch_devices(self) -> Iterator[SyncWatch[ResourceStatus]]:
        """Follow the resources as :meth:`watch` follows the plugins; one that has gone comes once more as ``gone``.

        ::

            with client.watch_devices() as changes:
                for resource in changes:
                    print(resource.name, resource.allocatable)

        Each has its devices as :meth:`devices` would return them when it is yielded.
        """
        with Entered(self._client.watch_devices()) as found:
            yield SyncWatch(found)

    wait_for = _blocking(Client.wait_for)
    wait_for_devices = _blocking(Client.wait_for_devices)
    retry = _blocking(Client.retry)

    @contextmanager
    def serve(self, plugin_type: str, held: Iterable[Instance] = ()) -> Iterator[SyncServing]:
        """Be the handler of a plugin type for a block; ``held`` is that of :meth:`Client.serve`.

        ::

            with client.serve("SensorPlugin") as asks:
                for ask in asks:
                    match ask:
                        case SyncHandlerAsk(kind="validate") if not known(ask.instance.name):
                            ask.refuse("it is not known here")
                        case SyncHandlerAsk():
                            ask.done()

        The daemon is only read between two asks: the next one waits until the loop comes round, and so does the answer
        to a ping, which tells the daemon that the handler does not hang. Give what takes long to a thread of your own:
        any thread may answer an ask, call :meth:`SyncServing.report`, and close the session.

        Raises:
          DaemonError: with the status 409 if the type has a handler, and 403 if this user may not serve it.
        """
        from .serving import SyncServing

        with Entered(self._client.serve(plugin_type, held)) as serving:
            yield SyncServing(serving)

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
        allocated = self._client.allocate(
            resources,
            ids=ids,
            include=include,
            id=id,
            labels=labels,
            pool=pool,
            wait=wait,
            ignore_missing=ignore_missing,
        )
        with Entered(allocated) as lease:
            yield lease

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
        with self._client.held(LeaseBody(request, ConnectionOwner(), id, wait)) as held:
            yield held

    take = _blocking(Client.take)
    release = _blocking(Client.release)
    renew = _blocking(Client.renew)
    leases = _blocking(Client.leases)

    @contextmanager
    def watch_leases(self) -> Iterator[SyncWatch[Lease]]:
        """Follow the leases as :meth:`watch` follows the plugins; one that has ended comes once more as ``gone``."""
        with Entered(self._client.watch_leases()) as found:
            yield SyncWatch(found)
