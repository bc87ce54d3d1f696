"""A transport reads its socket before it waits, and loses no wake-up and no close in between."""

import socket
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from plugind.actors.grpc.client.transport import SocketTransport

T = TypeVar("T")


@pytest.fixture
def pair() -> Iterator[tuple[SocketTransport, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    transport = SocketTransport(ours)
    yield transport, theirs
    transport.close()
    theirs.close()


@types.coroutine
def meanwhile(waiter: Coroutine[object, object, T], act: Callable[[], object]) -> Generator[object, object, T]:
    """Await ``waiter``, and call ``act`` when it waits for the first time."""
    trap = waiter.send(None)
    act()
    while True:
        try:
            trap = waiter.send((yield trap))
        except StopIteration as done:
            result: T = done.value
            return result


def test_what_was_sent_is_unread_until_the_peer_has_read_all_of_it(pair: tuple[SocketTransport, socket.socket]) -> None:
    """The kernel frees what was sent at once when the last byte of it is read."""
    transport, theirs = pair
    assert not transport.is_unread()
    transport.send(b"a request")
    assert transport.is_unread()
    theirs.recv(3)
    assert transport.is_unread()
    theirs.recv(100)
    assert not transport.is_unread()


def test_what_is_sent_to_a_process_that_does_not_accept_is_unread(tmp_path: Path) -> None:
    """Fault 32: the connection waits in the backlog."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as ours:
        listener.bind(str(tmp_path / "a.sock"))
        listener.listen()
        ours.connect(str(tmp_path / "a.sock"))
        ours.setblocking(False)
        transport = SocketTransport(ours)
        transport.send(b"a request")
        assert transport.is_unread()
        theirs, _ = listener.accept()
        with theirs:
            assert transport.is_unread()
            theirs.recv(100)
            assert not transport.is_unread()


async def test_bytes_that_come_before_the_wait_are_read(pair: tuple[SocketTransport, socket.socket]) -> None:
    transport, theirs = pair
    with trio.fail_after(60):
        assert await meanwhile(transport.receive(unsent=False), lambda: theirs.send(b"early")) == b"early"


async def test_bytes_that_come_during_the_wait_are_read_each_time(pair: tuple[SocketTransport, socket.socket]) -> None:
    transport, theirs = pair
    with trio.fail_after(60):
        for word in (b"one", b"two"):
            async with trio.open_nursery() as nursery:

                async def later(word: bytes = word) -> None:
                    await trio.testing.wait_all_tasks_blocked()
                    theirs.send(word)

                nursery.start_soon(later)
                assert await transport.receive(unsent=False) == word


class CountedReads(socket.socket):
    """A socket that counts how often it is read."""

    reads = 0

    def recv(self, *arguments: int) -> bytes:
        self.reads += 1
        return super().recv(*arguments)


@pytest.mark.parametrize(("is_expected", "reads"), [(True, 2), (False, 1)])
async def test_a_peer_of_which_nothing_is_expected_is_read_once_it_says_something(
    *, is_expected: bool, reads: int
) -> None:
    """A read that finds nothing costs a system call and a pass of the loop for each connection that is idle."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    counted = CountedReads(fileno=ours.detach())
    transport = SocketTransport(counted)
    if not is_expected:
        transport.expect_nothing()
    with theirs, trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def later() -> None:
                await trio.testing.wait_all_tasks_blocked()
                theirs.send(b"at last")

            nursery.start_soon(later)
            assert await transport.receive(unsent=False) == b"at last"
    assert counted.reads == reads
    transport.close()


async def test_a_wake_before_the_wait_ends_it(pair: tuple[SocketTransport, socket.socket]) -> None:
    """Otherwise a leader that is about to wait for bytes would miss that there is something to send."""
    transport, theirs = pair
    with trio.fail_after(60):
        assert await meanwhile(transport.receive(unsent=False), transport.wake) is None
        theirs.send(b"x")
        assert await transport.receive(unsent=False) == b"x"


async def test_a_close_before_the_wait_ends_it(pair: tuple[SocketTransport, socket.socket]) -> None:
    transport, _ = pair
    with trio.fail_after(60), pytest.raises(trio.ClosedResourceError):
        await meanwhile(transport.receive(unsent=False), transport.close)


async def test_the_end_of_the_peer_is_read_as_empty(pair: tuple[SocketTransport, socket.socket]) -> None:
    transport, theirs = pair
    theirs.close()
    with trio.fail_after(60):
        assert await transport.receive(unsent=False) == b""


async def test_a_peer_that_always_has_more_does_not_keep_a_task_from_being_cancelled(
    pair: tuple[SocketTransport, socket.socket],
) -> None:
    transport, theirs = pair
    with trio.CancelScope() as scope:
        scope.cancel()
        theirs.send(b"more")
        await transport.receive(unsent=False)
    assert scope.cancelled_caught
    with trio.fail_after(60):
        assert await transport.receive(unsent=False) == b"more"
