"""Endpoints on a running daemon."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from plugind.tests.end_to_end.processes import PLUGIND, Watch, daemon, plugin_process


def fake(path: Path, endpoint: str | Path) -> list[str]:
    """The registrar of a DRA driver, which may listen on its endpoint later."""
    command = [*PLUGIND, "fake", "--socket", str(path), "--type", "DRAPlugin", "--name", f"{path.stem}.example.com"]
    return [*command, "--endpoint", str(endpoint), "--registrar-only"]


async def warned(watch: Watch, path: Path, *warnings: str) -> None:
    await watch.until(
        lambda watch: (
            (plugin := watch.now.get(str(path))) is not None
            and (plugin["state"], plugin["warnings"]) == ("registered", list(warnings))
        )
    )


async def test_endpoints_are_judged_when_they_are_named_and_when_they_appear(tmp_path: Path) -> None:
    """Faults 43 and 45: ``/etc/passwd`` was registered as an endpoint, and the daemon dialed its own status socket."""
    with daemon(tmp_path, "--rescan", "0.2") as node:
        await node.ready()
        bad, late, endpoint = node.root / "bad.sock", node.root / "late.sock", node.root / ".driver.sock"
        async with (
            node.watch() as watch,
            plugin_process(fake(bad, "/etc/passwd")) as refused,
            plugin_process(fake(late, endpoint)) as registered,
        ):
            os.link(node.status, node.root / "status.sock")
            said = await refused.line(call="NotifyRegistrationStatus")
            assert said["plugin_registered"] is False
            assert "the endpoint '/etc/passwd' is no socket" in str(said["error"])
            await registered.notified_registered()
            await warned(watch, late, "endpoint does not exist yet")
            with socket.socket(socket.AF_UNIX) as driver:
                driver.bind(str(endpoint))
                driver.listen()
                await warned(watch, late)
            own = await watch.state(node.root / "status.sock", "parked")
            assert str(own["reason"]).endswith("it is plugind's own status socket, which is never dialed")
