"""Calls to DRA drivers that prepare and unprepare the devices of claims. Error texts are the kubelet's."""

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

#: The largest answer for each claim, in bytes; a claim has at most 32 devices. Longer answers are not parsed.
MAX_PER_CLAIM = 65_536

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

#: Returns the instance that is in use, or raises ``DRADriverUnknownError``.
Used = Callable[[], DRAFollower]
Count = Callable[[CallEnded], Awaitable[None]]


class DRADriver:
    """A DRA driver by its name: the calls for resource claims.

    Each call goes to the instance in use at that time: the newest connected one. Calls can be repeated until they
    succeed: a driver that has already prepared a claim answers with the result. All methods must be called in Trio's
    loop.
    """

    def __init__(self, name: str, used: Used, count: Count) -> None:
        self.name = name
        self._used = used
        self._count = count

    async def prepare(self, claims: Sequence[DRAClaim]) -> Prepared:
        """Prepare the devices of ``claims``; return the devices of each claim, by its uid.

        Most drivers look up the claims at an API server, so they must exist there.

        Raises:
          DRADriverUnknownError: if no instance of the driver is registered.
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
        """Undo the preparation of the devices of ``claims``.

        Raises:
          DRADriverUnknownError: if no instance of the driver is registered.
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


#: The service names that drivers announce, and those in the path of a call. They do not differ otherwise here.
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
