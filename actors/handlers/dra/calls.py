"""The calls to DRA drivers: to prepare the devices of claims, and to undo that. Errors have the kubelet's words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import trio
from google.protobuf.message import Message
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from ....protocol.errors import NoConnectionError
from ....protocol.handlers.dra_claims import (
    CALL_TIMEOUT,
    DRACallError,
    DRAClaim,
    Prepared,
    PreparedDevice,
    check_answer,
    check_claims,
)
from ....protocol.messages.consumers import CallEnded, CallFamily
from ....protocol.proto import dra_v1_pb2 as api
from ....protocol.wire.errors import WireError
from ....protocol.wire.outcomes import status_text
from ...grpc.client.channel import Channel
from ...grpc.client.stream import at_most
from .driver import DRAFollower

#: Bytes of an answer for each claim, which has at most 32 devices: more would be made into objects only to be refused.
MAX_PER_CLAIM = 65_536

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

#: Returns the instance that is used now, or raises ``DRADriverUnknownError``.
Used = Callable[[], DRAFollower]
#: Counts a call.
Count = Callable[[CallEnded], Awaitable[None]]


class DRADriver:
    """A DRA driver by its name: what it can be asked for resource claims.

    Each call goes to the instance that is used then: the newest one that is connected. It may be repeated, as often as
    it takes: a driver that has prepared a claim already says so. All is used in Trio's loop.
    """

    def __init__(self, name: str, used: Used, count: Count) -> None:
        #: The name of the driver.
        self.name = name
        self._used = used
        self._count = count

    async def prepare(self, claims: Sequence[DRAClaim]) -> Prepared:
        """Have the devices of ``claims`` prepared; return them for each claim, by its uid.

        Most drivers look up the claims at an API server, so they must be there.

        Raises:
          DRADriverUnknownError: if no instance of the driver is registered any more.
          DRACallError: if the call fails, or has no answer within 45 s.
          DRAClaimError: if the driver fails for a claim.
          DRAAnswerError: if the answer is not for these claims.
          ValueError: if two claims have the same uid.
        """
        method, by_uid = "NodePrepareResources", check_claims(claims)
        if not claims:
            return {}
        request = api.NodePrepareResourcesRequest(claims=_messages(claims))
        reply = at_most(MAX_PER_CLAIM * len(claims), api.NodePrepareResourcesResponse)
        said = await self._call(method, request, reply)
        check_answer(method, by_uid, {uid: one.error for uid, one in said.claims.items()})
        return {uid: tuple(map(_device, said.claims[uid].devices)) for uid in by_uid}

    async def unprepare(self, claims: Sequence[DRAClaim]) -> None:
        """Have it undone that the devices of ``claims`` are prepared.

        Raises:
          DRADriverUnknownError: if no instance of the driver is registered any more.
          DRACallError: if the call fails, or has no answer within 45 s.
          DRAClaimError: if the driver fails for a claim.
          DRAAnswerError: if the answer is not for these claims.
          ValueError: if two claims have the same uid.
        """
        method, by_uid = "NodeUnprepareResources", check_claims(claims)
        if not claims:
            return
        request = api.NodeUnprepareResourcesRequest(claims=_messages(claims))
        reply = at_most(MAX_PER_CLAIM * len(claims), api.NodeUnprepareResourcesResponse)
        said = await self._call(method, request, reply)
        check_answer(method, by_uid, {uid: one.error for uid, one in said.claims.items()})

    async def _call(self, method: str, request: Q, reply: type[A]) -> A:
        used = self._used()
        path = f"/{SERVICES[used.service]}/{method}"
        began, code = trio.current_time(), Status.CANCELLED
        try:
            said = await _answered(await used.connect(), path, request, reply)
            code = Status.OK
        except NoConnectionError as error:
            code = Status.UNAVAILABLE
            raise DRACallError(f"{method}: {error}") from error
        except GRPCError as error:
            code = error.status
            raise DRACallError(f"{method}: {_words(error)}") from error
        except trio.ClosedResourceError as error:
            code = Status.UNAVAILABLE
            raise DRACallError(f"{method}: the connection to the endpoint was closed") from error
        finally:
            seconds = trio.current_time() - began
            await self._count(CallEnded(CallFamily.DRA, self.name, path, code.name, seconds))
        return said


#: The services as drivers announce them, and as they are called. They differ in nothing else that matters here.
SERVICES: Mapping[str, str] = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}


async def _answered(channel: Channel, path: str, request: Q, reply: type[A]) -> A:
    async with channel.request(path, Cardinality.UNARY_UNARY, type(request), reply, timeout=CALL_TIMEOUT) as stream:
        await stream.send_message(request, end=True)
        said = await stream.recv_message()
    assert said is not None, "a call without an answer has failed"
    return said


def _words(error: GRPCError) -> str:
    if error.status is Status.DEADLINE_EXCEEDED and not isinstance(error.__cause__, WireError):
        return f"DEADLINE_EXCEEDED: no answer within {CALL_TIMEOUT:g} s"
    return status_text(error)


def _messages(claims: Iterable[DRAClaim]) -> list[api.Claim]:
    return [api.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]


def _device(said: api.Device) -> PreparedDevice:
    share = said.share_id if said.HasField("share_id") else None
    return PreparedDevice(
        tuple(said.request_names), said.pool_name, said.device_name, tuple(said.cdi_device_ids), share
    )
