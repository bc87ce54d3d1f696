"""The synchronous client of a daemon, on plain sockets: importing it loads neither Trio nor asyncio."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar

import attrs

from ...protocol.leases.asked_json import LeaseBody
from ...protocol.leases.values import Lease
from ...protocol.plugins.devices import ResourceStatus
from ...protocol.plugins.status import PluginStatus
from ..http.backends import BLOCKING, Entered, blocking, result_of
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

    @asynccontextmanager
    async def _held(self, asked: LeaseBody) -> AsyncIterator[HeldLease]:
        """Hold a lease for the block; a thread keeps its connection."""
        keeper = await self._kept(asked)
        thread = threading.Thread(target=lambda: result_of(keeper.keep()), name="plugind lease", daemon=True)
        thread.start()
        try:
            async with self._ending(keeper):
                yield keeper.held
        finally:
            thread.join()
        if keeper.held.lost is not None:
            raise LeaseLostError(keeper.held.lost)


def _blocking_block(
    method: Callable[Concatenate[Client, P], AbstractAsyncContextManager[T]],
) -> Callable[Concatenate[SyncClient, P], AbstractContextManager[T]]:
    """Return a method for ``with`` that does what one of :class:`Client` does for ``async with``."""

    @wraps(method)
    def opened(self: SyncClient, /, *args: P.args, **more: P.kwargs) -> AbstractContextManager[T]:
        return Entered(method(self._inner, *args, **more))

    signature = inspect.signature(method)
    shown = signature.replace(return_annotation=signature.return_annotation.replace("Async", ""))
    opened.__dict__["__signature__"] = shown
    opened.__doc__ = (method.__doc__ or "").replace("async with", "with")
    return opened


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
    def _inner(self) -> _BlockingClient:
        return _BlockingClient(self.path, timeout=self.timeout)

    list = blocking(Client.list)
    describe = blocking(Client.describe)
    devices = blocking(Client.devices)

    @contextmanager
    def watch(self) -> Iterator[SyncWatch[PluginStatus]]:
        """Follow the plugins: all of them first, then each that has changed, until the daemon stops.

        ::

            with client.watch() as changes:
                for plugin in changes:
                    print(plugin.socket, plugin.state)
        """
        with Entered(self._inner.watch()) as found:
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
        with Entered(self._inner.watch_devices()) as found:
            yield SyncWatch(found)

    wait_for = blocking(Client.wait_for)
    wait_for_devices = blocking(Client.wait_for_devices)
    retry = blocking(Client.retry)

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

        with Entered(self._inner.serve(plugin_type, held)) as serving:
            yield SyncServing(serving)

    # --- leases ---

    allocate = _blocking_block(Client.allocate)
    hold = _blocking_block(Client.hold)
    take = blocking(Client.take)
    release = blocking(Client.release)
    renew = blocking(Client.renew)
    leases = blocking(Client.leases)
    drain = blocking(Client.drain)
    undrain = blocking(Client.undrain)

    @contextmanager
    def watch_leases(self) -> Iterator[SyncWatch[Lease]]:
        """Follow the leases as :meth:`watch` follows the plugins; one that has ended comes once more as ``gone``."""
        with Entered(self._inner.watch_leases()) as found:
            yield SyncWatch(found)
