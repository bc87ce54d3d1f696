"""Takes pictures of the page of ``plugind page``, with a node that is made up::

    python -m tests.tools.page_pictures docs

It needs the Debian package chromium-driver and the PyPI package selenium. Look at each picture: no test does.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import attrs
import trio

from plugind.protocol.leases.values import (
    ConnectionOwner,
    ContainerOwner,
    Lease,
    LeaseState,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
)
from plugind.protocol.plugins.health import Health
from plugind.protocol.plugins.status import StateName
from plugind.tests.actors.status.page.stand_in import GPU, StandIn, history, plugin, resource
from plugind.tests.end_to_end.browser import Browser, browser, page_of, playing

CSI = "CSIPlugin"
S = StateName


def fill(daemon: StandIn) -> None:
    """Make up a node."""
    ago = partial(lambda now, seconds: now - seconds, trio.current_time())
    registered = history((3725.0, S.DIALING, None), (3724.99, S.ASKING_INFO, None), (3724.9, S.REGISTERED, None))
    for name in ("ebs.csi.example.com", "nfs.csi.example.com", "smb.csi.example.com", "efs.csi.example.com"):
        made = plugin(name, since=ago(3724.9), registered_in=0.035, health=Health.HEALTHY, pid=812, uid=0)
        daemon.put_plugin(attrs.evolve(made, history=registered, versions=("1.0.0",), facts=(("node-id", "node-7"),)))
    error = "rpc error: code = Unavailable desc = no metadata service"
    refused = f"CSI driver cinder.csi.example.com: NodeGetInfo failed: {error}"
    past: list[tuple[float, StateName, str | None]] = [(9000.0, S.REGISTERED, None), (320.0, S.LEAVING, None)]
    for back in (300.0, 280.0, 240.0, 160.0):
        past += [(back, S.DIALING, None), (back - 0.02, S.VALIDATING, None), (back - 4.0, S.WAITING, refused)]
    daemon.put_plugin(
        plugin(
            *("cinder.csi.example.com", S.WAITING),
            since=ago(156.0),
            reason=refused,
            cause="NodeGetInfo failed: no metadata service",
            attempt=4,
            next_try=ago(-84.0),
            pid=4711,
            uid=0,
            history=history(*past),
        )
    )
    daemon.put_plugin(
        plugin("ceph.csi.example.com", since=ago(90_000), health=Health.UNHEALTHY, health_reason="Probe: not ready")
    )
    daemon.put_plugin(plugin("gpu", since=ago(9000), type="DevicePlugin", name=GPU))
    daemon.put_plugin(plugin("nic", since=ago(9000), type="DevicePlugin", name="vendor.com/nic"))
    daemon.put_plugin(plugin("gpu.dra.example.com", since=ago(700), type="DRAPlugin", health=Health.HEALTHY))
    daemon.put_plugin(
        plugin("tpu.dra.example.com", since=ago(700), type="DRAPlugin", serving=False, not_serving="nobody listens")
    )
    daemon.put_plugin(plugin("new.dra.example.com", S.ASKING_INFO, since=ago(2), type=None, name=None))
    daemon.put_plugin(
        plugin(
            "old.csi.example.com",
            S.PARKED,
            since=ago(86_400),
            reason="versions [0.3.0] are not supported",
            cause="versions [0.3.0] are not supported",
        )
    )
    healths = {f"GPU-{number}": "Healthy" if number != 5 else "Unhealthy" for number in range(8)}
    daemon.put_resource(resource(GPU, **healths))
    daemon.put_resource(resource("vendor.com/nic", **{f"eth{number}": "Healthy" for number in range(4)}))
    asked = Request((Wanted(GPU, 2),))
    process, unix = ProcessIdentity(991, 7, "boot"), time.time()
    for lease in (
        Lease("train", 5000, asked, ProcessOwner(process), LeaseState.HELD, unix - 4000, {GPU: ("GPU-0", "GPU-1")}),
        Lease(
            "web-7",
            5001,
            asked,
            ContainerOwner(process),
            LeaseState.HELD,
            unix - 400,
            {GPU: ("GPU-2",), "vendor.com/nic": ("eth0",)},
        ),
        Lease(
            "notebook", 5002, asked, TimeOwner(600.0, 500_000_000_000), LeaseState.HELD, unix - 100, {GPU: ("GPU-3",)}
        ),
        Lease("batch-12", 5003, Request((Wanted(GPU, 8),)), ConnectionOwner(), LeaseState.QUEUED, unix - 50),
    ):
        daemon.put_lease(lease)


def fill_many(daemon: StandIn) -> None:
    """Make up a node with ten thousand plugins."""
    causes = ("dial: connection refused", "GetInfo: deadline exceeded", "versions [0.3.0] are not supported")
    for number in range(10_000):
        kind = ("CSIPlugin", "DevicePlugin", "DRAPlugin")[number % 3]
        state = S.WAITING if number % 61 == 0 else S.PARKED if number % 997 == 0 else S.REGISTERED
        cause = None if state is S.REGISTERED else causes[number % 3]
        daemon.put_plugin(plugin(f"p{number:05}.example.com", state, type=kind, cause=cause, reason=cause))
    daemon.described.clear()


def shrunk(path: Path) -> None:
    """Make a picture smaller: a palette is enough for a page."""
    from PIL import Image

    made = io.BytesIO()
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(255, kmeans=1, dither=Image.Dither.NONE)
        few.save(made, "PNG", optimize=True)
    path.write_bytes(made.getvalue())


#: Clicks on the row with a text.
_CLICK = (
    "[...document.querySelectorAll('#pane .grid:not([hidden]) .row')]"
    ".find((it) => it.textContent.includes(arguments[0])).click()"
)


def take(shown: Browser, path: Path) -> None:
    """Take a picture, as if of a node: this machine has another name, and the daemon that is played another path."""
    shown.run("document.getElementById('where').textContent = 'on node-7, asked at /run/plugind/status.sock'")
    shown.picture(path)


def photograph(shown: Browser, directory: Path) -> None:
    """Take the pictures."""
    with tempfile.TemporaryDirectory() as scratch, playing(f"{scratch}/s") as player:
        player.do(fill)
        with page_of(f"{scratch}/s") as (address, _):
            shown.set_width(1280, 800)
            for name, dark in (("light", False), ("dark", True)):
                shown.set_dark(dark)
                shown.open(address)
                shown.until("document.querySelectorAll('#pane .grid:not([hidden]) .row').length >= 12")
                if dark:
                    shown.run("document.getElementById('tab-resources').click()")
                    shown.until("document.querySelectorAll('#resources .row').length == 2")
                shown.run(_CLICK, GPU if dark else "cinder")
                shown.until("document.querySelector('#details .timeline, #details .grid .row')")
                take(shown, directory / f"page-{name}.png")
            shown.set_dark(dark=False)
            shown.set_width(320, 640, mobile=True)
            shown.open(address)
            shown.until("document.querySelectorAll('.row').length >= 6")
            take(shown, directory / "page-narrow.png")
            shown.run(_CLICK, "cinder")
            shown.until("document.querySelector('#details .timeline')")
            take(shown, directory / "page-narrow-details.png")
        player.do(fill_many)
        with page_of(f"{scratch}/s") as (address, _):
            shown.set_width(1280, 800)
            shown.open(address)
            shown.until("document.getElementById('shown').textContent.startsWith('10,0')")
            take(shown, directory / "page-many.png")


def main() -> None:
    """Take the pictures into the directory of the command line."""
    directory = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch, browser(Path(scratch)) as shown:
        photograph(shown, directory)
    for path in sorted(directory.glob("page-*.png")):
        shrunk(path)
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
