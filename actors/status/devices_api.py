"""The routes of the status socket about devices.

Each answer is a snapshot of the devices actor. The question has a deadline, so a devices actor that hangs costs one
answer and nothing else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import attrs
import trio

from ...protocol.devices.json import LeaseMarks, described_to_json, device_to_json, resource_to_json
from ...protocol.devices.messages import (
    DevicesAsked,
    DevicesMessage,
    DevicesSubscribed,
    DevicesUnsubscribed,
    DevicesViewMessage,
    ResourceChanged,
)
from ...protocol.devices.refused_calls import RefusedCalls
from ...protocol.leases.drains import sorted_drains
from ...protocol.leases.leases_json import drain_to_json
from ...protocol.leases.replies import LeasesSnapshot
from ...protocol.logs.lines import timestamp
from ...protocol.messages.addresses import Address
from ...protocol.plugins.devices import DevicesSnapshot, ResourceState, ResourceStatus
from ...protocol.status.json import Json
from ...protocol.text import encodable
from ..http.server import HttpRequest, HttpResponse, json_response, problem
from .streams import AnswerStream, OpenWatches, Reader, Unsent, Watched, first_message, send_pieces

#: Seconds for the devices actor's answer, below the deadline of the commands.
DEADLINE = 3.0
NO_ANSWER = f"the devices actor has not answered within {DEADLINE:g} s"
NO_DRAINS = f"the lease actor has not said within {DEADLINE:g} s what is drained"
#: How many devices are written before other tasks run: about a millisecond of work.
PIECE = 200


async def _no_leases(_: float) -> LeasesSnapshot:
    return LeasesSnapshot(trio.current_time())


@attrs.define(eq=False)
class DevicesApi:
    """Answers requests about devices."""

    wall: Callable[[], float]
    #: None if this node has no device plugins.
    devices: Address[DevicesMessage] | None = None
    refused_calls: RefusedCalls = attrs.field(factory=RefusedCalls)
    #: Whether this node only observes plugins, and so does not ask them for their devices.
    observes: bool = False
    unsent: Unsent = attrs.field(factory=Unsent)
    #: Returns the leases, the pools and the drains; None if the lease actor does not answer within so many seconds.
    leases: Callable[[float], Awaitable[LeasesSnapshot | None]] = _no_leases
    watches: OpenWatches = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.watches = OpenWatches(self.unsent)

    async def snapshot(self, deadline: float = DEADLINE) -> DevicesSnapshot | None:
        """Return all resources; None if the devices actor does not answer in time."""
        if self.devices is None:
            return DevicesSnapshot(trio.current_time())
        reply, answer = trio.open_memory_channel[DevicesSnapshot](1)
        self.devices.send_nowait(DevicesAsked(reply))
        with reply, answer, trio.move_on_after(deadline):
            return await answer.receive()
        return None

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer with all resources and their devices, or with the resource of ``?resource=``."""
        unknown = request.query.keys() - {"resource"}
        if unknown:
            return problem(400, f"there is no parameter {encodable(min(unknown))}; {request.path} takes resource")
        name = request.query.get("resource")
        if name == "":
            return problem(400, f"resource is empty: name one, as in {request.path}?resource=vendor.com/gpu")
        snapshot = await self.snapshot()
        if snapshot is None:
            return problem(503, NO_ANSWER)
        if (leases := await self.leases(DEADLINE)) is None:
            return problem(503, NO_DRAINS)
        there = [resource for resource in snapshot.resources if resource.state is not ResourceState.GONE]
        asked = [resource for resource in there if name in (None, resource.name)]
        if name is not None and not asked:
            names = ", ".join(encodable(resource.name) for resource in there[:10]) or "none"
            unknown_name = f"neither a device plugin nor the configuration offers {encodable(name)}"
            refused = self.refused_calls.words(name, trio.current_time())
            why = "" if refused is None else f"; {refused}"
            return problem(404, f"{unknown_name}, and it is not awaited; there is {names}{why}")
        drains: list[Json] = [
            drain_to_json(drain)
            for drain in sorted_drains(leases.drains)
            if name in (None, drain.target.resource or name)
        ]
        write = self.unsent.counted(partial(self._write, snapshot, asked, LeaseMarks(leases), drains))
        return HttpResponse(200, "application/json", write=write)

    async def _write(
        self,
        snapshot: DevicesSnapshot,
        resources: list[ResourceStatus],
        marks: LeaseMarks,
        drains: list[Json],
        send: AnswerStream,
    ) -> None:
        now, unix = snapshot.time, self.wall() - trio.current_time() + snapshot.time
        head = {
            "time": timestamp(unix),
            "problem": snapshot.problem,
            "observes": self.observes,
            "drains": drains,
        }
        await send(json.dumps(head)[:-1].encode())
        before = b', "resources": ['
        for resource in resources:
            await send(before + json.dumps(resource_to_json(resource, now, unix))[:-1].encode() + b', "devices": [')
            within = b"\n"
            devices, of_leases = resource.devices(), marks.of(resource)
            while some := list(itertools.islice(devices, PIECE)):
                lines = (
                    json.dumps(device_to_json(device, now, unix) | of_leases.get(device.id, {})) for device in some
                )
                await send(within + ",\n".join(lines).encode())
                within = b",\n"
                await trio.lowlevel.checkpoint()
            await send(b"]}")
            before = b",\n"
        await send(b"]}\n" if resources else before + b"]}\n")

    def refused(self, _: HttpRequest) -> HttpResponse:
        """Answer with the last refused call of Register for each resource."""
        return json_response(200, [*self.refused_calls.to_json(trio.current_time(), self.wall())])

    def watch(self, request: HttpRequest) -> HttpResponse:
        """Stream the resources without their devices: all of them first, then each that has changed."""
        if self.devices is None:
            return problem(404, "this node has no device plugins")
        devices = self.devices
        return self.watches.answer(
            request,
            Watched(
                ResourceChanged,
                lambda changed: self._line(changed.resource, changed.time),
                self._write_first,
                lambda writer: devices.send_nowait(DevicesSubscribed(writer)),
                lambda writer: devices.send_nowait(DevicesUnsubscribed(writer)),
            ),
        )

    async def _write_first(self, reader: Reader[DevicesViewMessage], send: AnswerStream) -> bool:
        first = await first_message(reader, send, DEADLINE, NO_ANSWER)
        if isinstance(first, DevicesSnapshot):
            there = (resource for resource in first.resources if resource.state is not ResourceState.GONE)
            await send_pieces((self._line(resource, first.time) for resource in there), send)
        return first is not None

    def _line(self, resource: ResourceStatus, then: float) -> bytes:
        unix = round(self.wall() - trio.current_time() + then, 6)
        return json.dumps({"time": timestamp(unix), **resource_to_json(resource, then, unix)}).encode() + b"\n"

    async def describe(self, plugins: Sequence[tuple[str, str, int]]) -> list[dict[str, Json] | None]:
        """Return the descriptions of device plugins, each given by name, socket and generation."""
        snapshot = await self.snapshot()
        if snapshot is None:
            return [None] * len(plugins)
        now, unix = snapshot.time, self.wall() - trio.current_time() + snapshot.time
        found = ((snapshot.find(name), socket, generation) for name, socket, generation in plugins)
        return [
            None if resource is None else described_to_json(resource, socket, generation, now, unix)
            for resource, socket, generation in found
        ]

    async def why_known(self, name: str) -> str | None:
        """Return a text about the resource ``name`` that has no plugin; None if there is no such resource."""
        snapshot = await self.snapshot()
        found = None if snapshot is None else snapshot.find(name)
        if snapshot is None or found is None or found.until is None:
            return None
        left = f"{found.until - snapshot.time:.0f} s"
        return f"the resource {encodable(name)} is {found.state}, and goes in {left}: {encodable(found.reason or '')}"
