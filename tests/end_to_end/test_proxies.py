"""``deploy/proxy``: nginx and Caddy before a real daemon and its page, and systemd's judgement of their units.

The certificates are those of the commands in ``docs/operations.md``. Both proxies run as a user who is only in the
group of ``--status-group``.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import attrs
import pytest
import trio

from plugind.actors.status.api import REQUESTS
from plugind.tests.actors.status.page.events import Browser
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import DEADLINE, PLUGIND, Daemon, daemon, finish, plugin_process, run
from plugind.tests.end_to_end.test_page_command import fake
from plugind.tests.end_to_end.test_service_unit import analyze

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be other users"),
]

REPOSITORY = Path(__file__).parents[2]
PROXY = REPOSITORY / "deploy" / "proxy"
#: Debian's user and group without rights. The group has the part of plugind-readers.
NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
TOKEN = "0123456789abcdef0123456789abcdef"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
NGINX = """
user nobody nogroup;
pid {place}/nginx.pid;
error_log {place}/nginx.log;
daemon off;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxied;
    include {place}/plugind.conf;
}}
"""


@attrs.frozen
class Proxy:
    """A proxy that runs, and the directory with the certificates."""

    port: int
    place: Path

    def context(self, certificate: str | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.place / "ca.crt")
        if certificate is not None:
            context.load_cert_chain(self.place / f"{certificate}.crt", self.place / f"{certificate}.key")
        return context

    @contextmanager
    def connection(self, certificate: str | None = None) -> Iterator[HTTPSConnection]:
        connection = HTTPSConnection("node-7", self.port, timeout=DEADLINE, context=self.context(certificate))
        # The name of the node is in the certificate alone, so TLS begins here.
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE)
        connection.sock = self.context(certificate).wrap_socket(raw, server_hostname="node-7")
        try:
            yield connection
        finally:
            connection.close()

    def ask(
        self,
        target: str,
        certificate: str | None = None,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        body: bytes | None = None,
    ) -> tuple[int, bytes]:
        with self.connection(certificate) as connection:
            connection.request(method, target, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()

    def status(self, target: str, **how: Any) -> int:
        """Return the status of an answer; 0 if TLS refuses."""
        try:
            return self.ask(target, **how)[0]
        except (ssl.SSLError, ConnectionError, HTTPException):
            return 0


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that others can pass, with certificates."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory)
        made.chmod(0o711)
        make_certificates(made)
        yield made


def make_certificates(directory: Path) -> None:
    """Run the commands of the page."""
    program("openssl")
    page = (REPOSITORY / "docs/operations.md").read_text()
    (commands,) = [block for block in re.findall(r"(?m)(?:^    .+\n)+", page) if "openssl req" in block]
    finish(["sh", "-eu", "-c", commands], cwd=directory, env={**os.environ, "NODE": "node-7"}, check=True)
    # A certificate of another CA.
    create = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other"]
    finish([*create, "-keyout", "other.key", "-out", "other.crt"], cwd=directory, check=True)
    for key in directory.glob("*.key"):
        os.chown(key, NOBODY, NOBODY)


@contextmanager
def nginx(place: Path) -> Iterator[Proxy]:
    port = configured("nginx.conf", place, place / "plugind.conf")
    (place / "tokens").write_text(f'"Bearer {TOKEN}" 1;\n')
    (place / "nginx.conf").write_text(NGINX.format(place=place))
    with running([program("nginx"), "-c", str(place / "nginx.conf")], port, place):
        yield Proxy(port, place)


@contextmanager
def caddy(place: Path) -> Iterator[Proxy]:
    port = configured("Caddyfile", place, place / "Caddyfile")
    (place / "tokens").write_text(f'"Bearer {TOKEN}" known\n')
    (place / "caddy").mkdir()
    os.chown(place / "caddy", NOBODY, NOBODY)
    command = [*AS_NOBODY, program("caddy"), "run", "--config", str(place / "Caddyfile"), "--adapter", "caddyfile"]
    with running(command, port, place):
        yield Proxy(port, place)


def configured(name: str, place: Path, target: Path) -> int:
    """Write a configuration with the paths of this test and a port that is free; return the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    text = (PROXY / name).read_text().replace("9465", str(port))
    for path, own in {
        "/etc/nginx/plugind/node.": "node-7.",
        "/etc/caddy/plugind/node.": "node-7.",
        "/etc/nginx/plugind/": "",
        "/etc/caddy/plugind/": "",
        "/run/plugind/": "",
        "/run/plugind-page/": "",
        "/run/caddy/": "caddy/",
        "/var/lib/plugind-inventory": "",
    }.items():
        text = text.replace(path, f"{place}/{own}")
    target.write_text(text)
    return port


@contextmanager
def running(command: list[str], port: int, place: Path) -> Iterator[None]:
    """Run a proxy until the end of the block, once it listens."""
    environment = {"PATH": os.environ["PATH"], "HOME": f"{place}/caddy"}
    with (place / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        end = time.monotonic() + DEADLINE
        while not listens(port):
            assert process.poll() is None, (place / "proxy.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE).close()
    except ConnectionRefusedError:
        return False
    return True


both = pytest.mark.parametrize("proxy", [nginx, caddy], ids=["nginx", "caddy"])
Starting = Callable[[Path], AbstractContextManager[Proxy]]


@asynccontextmanager
async def scene(place: Path, proxy: Starting) -> AsyncIterator[tuple[Daemon, Proxy]]:
    """A daemon whose readers are the group of the proxy, its page for that group, and the proxy."""
    with daemon(place, "--status-group", str(NOBODY)) as node:
        await node.ready()
        # What the timer does.
        inventory = await trio.to_thread.run_sync(partial(run, "inventory", "--node", "node-7", status=node.status))
        (place / f"{os.uname().nodename}.json").write_text(inventory.out)
        page = [*PLUGIND, "page", "--socket", str(place / "page.sock"), "--status", node.status]
        group = ["setpriv", f"--regid={NOBODY}", "--clear-groups"]
        async with plugin_process([*group, *page, "--answer-timeout", str(DEADLINE)]) as started:
            assert started.process.stdout is not None
            with trio.fail_after(DEADLINE):
                assert await started.process.stdout.receive_some() == f"{place}/page.sock\n".encode()
            assert stat.S_IMODE((place / "page.sock").stat().st_mode) == 0o660
            with proxy(place) as served:
                yield node, served


@both
async def test_clients_with_a_certificate_or_a_token_get_what_is_listed_and_all_others_nothing(
    place: Path, proxy: Starting
) -> None:
    async with scene(place, proxy) as (node, served):
        shown = {
            "/metrics": b"# TYPE plugind_",
            "/inventory": b'{"node": "node-7", "time": ',
            "/": b"<!doctype html>",
            "/devices": b'"resources"',
            f"/plugin?socket={node.root}/none.sock": b"none.sock",
        }
        for target, text in shown.items():
            status, body = served.ask(target, "client")
            assert (status, text in body) == (404 if "plugin" in target else 200, True), (target, body)
            assert served.ask(target, headers=BEARER) == (status, ANY), target
            assert served.status(target, method="HEAD", certificate="client") == status, target
            for stranger in ({}, {"Authorization": f"Bearer {TOKEN[1:]}"}, {"Authorization": "Bearer "}):
                assert served.status(target, headers=stranger) == 401, (target, stranger)
            # nginx refuses in HTTP, Caddy in TLS.
            for certificate in ("node-7", "other"):
                assert served.status(target, certificate=certificate, headers=BEARER) in (0, 400), (target, certificate)
        everything = {line.split()[1] for line in REQUESTS} - {"/", "/metrics"}
        strange = {
            "/metrics/",
            "/metrics/../v1/leases",
            "/metrics%2f..%2fv1/leases",
            "/events/",
            "/inventory/../ca.key",
        }
        for target in everything | strange:
            assert served.status(target, certificate="client") == 404, target
            assert served.status(target) == 401, target
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            for target in ("/metrics", "/inventory", "/", "/events", "/v1/leases", "/reload"):
                assert served.status(target, certificate="client", method=method, body=b"{}") == 405, (method, target)
        assert served.status("/metrics", certificate="client", body=b"more than one byte") == 413


@both
async def test_the_page_is_told_of_changes_as_they_happen(place: Path, proxy: Starting) -> None:
    async with scene(place, proxy) as (node, served):
        path = node.root / "a.sock"
        with served.connection("client") as connection:
            connection.request("GET", "/events")
            answer = connection.getresponse()
            assert answer.status == 200
            browser = Browser()

            def until(holds: Callable[[Mapping[str, Any]], bool]) -> None:
                while not holds(browser.tables):
                    browser.take(answer.readline())

            await trio.to_thread.run_sync(until, lambda tables: there(tables))
            async with plugin_process(fake(path)):
                await trio.to_thread.run_sync(until, lambda tables: state(tables, path) == "registered")
            # Comments keep a connection alive on which nothing changes.
            await trio.to_thread.run_sync(until, lambda _: browser.comments >= 2)


def there(tables: Mapping[str, Any]) -> bool:
    return bool(tables.get("node", {}).get("plugins", {}).get("state") == "there")


def state(tables: Mapping[str, Any], path: Path) -> object:
    return tables.get("plugins", {}).get(str(path), {}).get("state")


async def test_caddy_takes_a_new_token_by_a_reload_and_serves_no_port_for_that(place: Path) -> None:
    (place / f"{os.uname().nodename}.json").write_text("{}")
    with caddy(place) as served:
        assert served.status("/inventory", headers={"Authorization": "Bearer new"}) == 401
        (place / "tokens").write_text('"Bearer new" known\n')
        command = [*AS_NOBODY, program("caddy"), "reload", "--force", "--config", str(place / "Caddyfile")]
        done = finish([*command, "--adapter", "caddyfile"], env={"PATH": os.environ["PATH"], "HOME": f"{place}/caddy"})
        assert done.returncode == 0, done.stderr
        assert served.status("/inventory", headers={"Authorization": "Bearer new"}) == 200
        assert served.status("/inventory", headers=BEARER) == 401


@pytest.mark.parametrize(
    ("unit", "most"),
    [("plugind-page", 0.7), ("plugind", 1.0), ("plugind-inventory", 9.6), ("nginx", 2.7), ("caddy", 1.5)],
)
def test_systemd_finds_no_fault_with_the_units(unit: str, most: float, tmp_path: Path) -> None:
    """The units of the proxies are those of Debian's packages."""
    shutil.copytree(PROXY, tmp_path, dirs_exist_ok=True)
    file = tmp_path / f"{unit}.service"
    if unit in ("nginx", "caddy"):
        program(unit)
        shutil.copy(f"/lib/systemd/system/{unit}.service", file)
    elif unit != "plugind-page":
        (own,) = (REPOSITORY / "deploy/systemd").glob(f"**/{unit}.service")
        shutil.copy(own, file)
    file.write_text(file.read_text().replace("/usr/bin/plugind", sys.executable))
    done = analyze("verify", "--recursive-errors=no", "--man=no", str(file))
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit in line]) == (0, [])
    over = analyze("security", "--offline=true", f"--threshold={round(most * 10)}", str(file))
    assert over.returncode == 0, over.stdout.splitlines()[-1]
