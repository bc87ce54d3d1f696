"""The port to processes and their listeners, in memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import trio

from ...protocol.health.liveness import ConnectAnswer, answer_of
from ...protocol.identity import Identity
from .network import MemoryNetwork, Process


class MemoryProcesses:
    """A :class:`~plugind.actors.health.liveness.ProcessPort` to the processes of a simulated node."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._numbers = itertools.count(1)
        self._watched: dict[int, Process] = {}
        self._ends, self._ended = trio.open_memory_channel[Process](math.inf)

    def look(
        self,
        path: str,
        identity: Identity | None,
        *,
        root: str | None = None,  # noqa: ARG002 - nothing in memory is a link
        take_process: bool,
    ) -> tuple[ConnectAnswer, int | None]:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        try:
            process = self._network.look(path, identity)
        except OSError as error:
            return answer_of(error), None
        if not take_process:
            return ConnectAnswer.ACCEPTED, None
        self._network.met[path] = process
        return ConnectAnswer.ACCEPTED, self._add(process)

    def watch(self, pid: int, age: float) -> int | None:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        process = self._network.processes.get(pid)
        if process is None or trio.current_time() - process.started < age:
            return None
        return self._add(process)

    def _add(self, process: Process) -> int | None:
        if process.ended:
            return None
        earlier = self._number_of(process)
        if earlier is not None:
            return earlier
        number = next(self._numbers)
        self._watched[number] = process
        process.watchers.append(self._ends.send_nowait)
        return number

    def _number_of(self, process: Process) -> int | None:
        return next((number for number, other in self._watched.items() if other is process), None)

    def forget(self, process: int) -> None:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        forgotten = self._watched.pop(process, None)
        if forgotten is not None and not forgotten.ended:
            forgotten.watchers.remove(self._ends.send_nowait)

    async def ended(self) -> Sequence[int]:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        while True:
            number = self._number_of(await self._ended.receive())
            if number is not None:
                del self._watched[number]
                return [number]

    def close(self) -> None:
        """See :class:`~plugind.actors.health.liveness.ProcessPort`."""
        for process in tuple(self._watched):
            self.forget(process)
