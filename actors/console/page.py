"""``plugind page``: everything about a node in a browser, as it changes."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal

import trio

from ...protocol.status.metrics_config import TcpAddress
from ...protocol.text import encodable, escaped
from ..http.server import serve
from ..io import unix_socket
from ..io.tcp_socket import TcpListener, listen
from ..status.page import routes
from ..status.page.board import Board
from ..status.page.daemon import follow
from ..status.page.documents import page
from .answers import Daemon, add_daemon_arguments, daemon
from .client import fetch
from .ending import EXIT_OK, CommandError, complain, say

_LOOPBACK = "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of ``plugind page``."""
    parser.description = (
        "Show the plugins, devices and leases of a node in a browser, as they change, until this command is stopped. It"
        " prints the address of the page, which this machine alone can reach, and which holds a token: whoever has the"
        " address may read what the status socket says. The page changes nothing."
    )
    parser.epilog = (
        "examples:\n"
        "  plugind page                              open the address that it prints\n"
        "  ssh -L 8080:127.0.0.1:8080 NODE plugind page --port 8080\n"
        "                                            the page of another machine\n"
        "  plugind page --socket /run/plugind-page/page.sock\n"
        "                                            for a proxy: docs/operations.md has the rest\n\n"
        "exit codes: 0 stopped by SIGINT or SIGTERM, 1 the daemon does not tell this user, or the place is taken,\n"
        "2 usage, 69 no daemon answers, or its socket may not be used, 75 it is busy"
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--port",
        type=_port,
        default=0,
        metavar="PORT",
        help=f"serve the page at this port of {_LOOPBACK} (default: one that is free)",
    )
    place.add_argument(
        "--socket",
        metavar="PATH",
        help="serve the page at this Unix socket, for a proxy: this user and the group of this process may connect,"
        " and need no token",
    )
    add_daemon_arguments(parser)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 1 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Serve the page until a signal stops it; return the exit code."""
    asked = daemon(args)
    # A daemon that is not there, or does not answer this user, is an error now; one that goes later comes back.
    # A user who may only lease may ask this, too.
    fetch(asked, "/v1/devices/refused")
    return trio.run(_serve, asked, args.port, args.socket)


async def _serve(daemon: Daemon, port: int, path: str | None) -> int:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_page, daemon, port, path)
            await anext(aiter(signals))
            nursery.cancel_scope.cancel()
    return EXIT_OK


async def _serve_page(daemon: Daemon, port: int, path: str | None) -> None:
    token, board = None if path is not None else secrets.token_urlsafe(32), Board()
    board.tell("daemon", {"host": encodable(os.uname().nodename), "path": encodable(daemon.path)})
    answers = routes.Routes(token, page(), board, routes.AskedDaemon(daemon.path, daemon.timeout))
    with contextlib.closing(_listen(port) if path is None else _listen_at(path)) as listener:
        # The part after # is not sent to servers, so it is in no log and no Referer header.
        where = f"http://{listener.address}/#{token}" if isinstance(listener, TcpListener) else escaped(listener.path)
        say(f"{where}\n", now=True)
        complain(f"the page of the daemon at {escaped(daemon.path)} is there until this is stopped (Ctrl-C)")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, daemon.path, daemon.timeout, board)
            await serve(listener, answers, routes.LIMITS, allowed=None, place=answers.place)


def _listen(port: int) -> TcpListener:
    try:
        return listen(TcpAddress(_LOOPBACK, port))
    except OSError as error:
        raise CommandError(f"cannot listen at port {port} of {_LOOPBACK}: {error.strerror or error}") from error


def _listen_at(path: str) -> unix_socket.UnixListener:
    try:
        return unix_socket.listen(path, mode=0o660, remove_stale=True)
    except OSError as error:
        raise CommandError(f"cannot listen at {escaped(path)}: {error.strerror or error}") from error
