"""The limits of the wire are options of the node, and the state of a plugin names the limit that it exceeds."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from plugind.actors.console.fake import FakeSpec, run_fake
from plugind.protocol.messages.status import PluginChanged
from plugind.protocol.plugins.status import StateName
from plugind.protocol.settings.config import Config, Root
from plugind.protocol.wire.limits import Limits
from plugind.supervisor import Supervisor
from plugind.testing import FakePlugin


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (Limits(message_bytes=100), "message_bytes"),
        (Limits(header_list_bytes=60), "header_list_bytes"),
        (Limits(total_bytes=120), "total_bytes"),
        (Limits(call_frames=2), "call_frames"),
        (Limits(call_header_bytes=60), "call_header_bytes"),
        (Limits(call_bytes=120), "call_bytes"),
        (Config().wire_limits, "over the limit of 65536 (limit message_bytes)"),
    ],
)
async def test_a_plugin_over_a_limit_waits_with_the_limit_as_its_reason(
    tmp_path: Path, limits: Limits, named: str
) -> None:
    """Faults 50, 52, 56, 61 and 64."""
    config = Config(roots=(Root(str(tmp_path)),), wire_limits=limits)
    name = "a" * (70_000 if limits is Config().wire_limits else 200)
    spec = FakeSpec(str(tmp_path / "a.sock"), FakePlugin("CSIPlugin", f"{name}.example.com"))
    with trio.fail_after(60):
        async with Supervisor(config) as node, node.changes() as changes, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: run_fake(spec, on_call=lambda _call: None))
            async for change in changes:
                if isinstance(change, PluginChanged) and change.plugin.state is StateName.WAITING:
                    assert named in (change.plugin.reason or "")
                    break
            nursery.cancel_scope.cancel()
