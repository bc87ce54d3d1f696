"""The thread in which the synchronous client holds a lease by a connection.

The program has the block for itself meanwhile, and the thread waits for the end of the connection, which nothing else
tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TypeVar

from ...protocol.leases.values import Lease
from ..io.silence import PATIENCE
from .awaited import RECONNECT
from .calls import ClientRequest
from .errors import ClientError
from .holding import holding_of
from .sync_transport import lines

T = TypeVar("T")


class Keeper:
    """Holds one lease, until :meth:`close` is called or the lease has ended."""

    def __init__(self, path: str, timeout: float, call: ClientRequest[Lease], seconds: float) -> None:
        """Ask the daemon at ``path`` for the lease, which may take so many ``seconds``.

        Raises:
          ClientError: if there is no lease.
        """
        self._path = path
        self._timeout = timeout
        self._over = threading.Event()
        self.holding = self._open(call, seconds, holding_of)
        self._thread = threading.Thread(target=self._run, name="plugind lease", daemon=True)
        self._thread.start()

    def _open(self, call: ClientRequest[Lease], seconds: float, read: Callable[[bytes, int], T]) -> T:
        """Open another stream in the place of the one before, and return what ``read`` makes of its first line."""
        with ExitStack() as opened:
            found = opened.enter_context(lines(self._path, call, silence=seconds, patience=PATIENCE))
            said = read(next(found, b""), found.uid)
            found.wait_for_ever()
            self._found, self._opened = found, opened.pop_all()
        return said

    def close(self) -> None:
        """Close the connection, which ends the lease."""
        self._over.set()
        self._found.close()
        self._thread.join()

    def _is_over(self) -> bool:
        return self._over.is_set() or not self.holding.is_held()

    def _run(self) -> None:
        while not self._is_over():
            with suppress(ClientError):  # It was interrupted.
                for line in self._found:
                    self.holding.note(line, self._found.uid)
            self._opened.close()
            while not (self._is_over() or self._resumed()):
                self._over.wait(RECONNECT)
        self._opened.close()

    def _resumed(self) -> bool:
        """Own the lease by another connection; return whether that has succeeded."""
        try:
            self._open(self.holding.resumption(), self._timeout, self.holding.note)
        except ClientError as error:
            self.holding.not_resumed(error)
            return False
        return True
