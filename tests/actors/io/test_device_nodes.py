"""Static devices on a real file system: real nodes, with a sysfs and a udev of the test's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import attrs
import pytest
import trio

from plugind.actors.io.device_nodes import DeviceNodes
from plugind.protocol.devices.access import ATTRIBUTE, decoded, users_of
from plugind.protocol.devices.static import FoundNode
from plugind.protocol.plugins.static_devices import StaticResource

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which may make device nodes")


@attrs.define
class Machine:
    """A machine with nodes in its own places."""

    place: Path

    @property
    def nodes(self) -> DeviceNodes:
        return DeviceNodes(*(str(self.place / name) for name in ("dev", "sys", "udev", "nvidia")))

    def make(self, name: str, minor: int = 3, *, kind: int = stat.S_IFCHR, major: int = 1) -> Path:
        """Make a node; by default one of those that every kernel has."""
        path = self.place / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
        return path

    def put(self, path: str, **files: str) -> Path:
        """Make a directory of sysfs with files in it."""
        directory = self.place / "sys" / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text + "\n")
        return directory

    def link(self, path: str, target: Path) -> None:
        link = self.place / "sys" / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def found(self, *patterns: str) -> list[tuple[str, str, str | None]]:
        resource = StaticResource(tuple(str(self.place / pattern) for pattern in patterns))
        found = self.nodes.find(resource)
        return sorted((os.path.relpath(node.path, self.place), node.number, node.problem) for node in found)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name in ("dev", "sys", "udev"):
        (tmp_path / name).mkdir()
    return Machine(tmp_path)


def test_character_and_block_devices_match_and_other_files_only_by_their_full_name(machine: Machine) -> None:
    machine.make("null0")
    machine.make("null1", kind=stat.S_IFBLK, major=7, minor=200)
    (machine.place / "dev" / "null2").write_text("")
    assert machine.found("dev/null*") == [("dev/null0", "c1:3", None), ("dev/null1", "b7:200", None)]
    assert machine.found("dev/null2", "dev/null3") == [
        ("dev/null2", "", "it is neither a character nor a block device")
    ]


def test_a_link_is_the_node_that_it_leads_to_and_one_that_leads_nowhere_is_none(machine: Machine) -> None:
    node = machine.make("null0")
    links = machine.place / "dev" / "by-id"
    links.mkdir()
    (links / "a").symlink_to("../null0")
    (links / "b").symlink_to("../gone")
    (found,) = machine.nodes.find(StaticResource((f"{links}/*",)))
    assert (found.path, found.node, found.number) == (f"{links}/a", str(node), "c1:3")


def test_a_node_that_others_may_replace_is_withheld_wherever_they_may(machine: Machine) -> None:
    machine.make("open/null0")
    links = machine.place / "dev" / "links"
    links.mkdir()
    (links / "a").symlink_to("../open/null0")
    os.chmod(machine.place / "dev" / "open", 0o777)
    (problem,) = {problem for _, _, problem in machine.found("dev/open/*", "dev/links/*")}
    assert problem == f"everybody may write to {machine.place}/dev/open, and so others may replace it"


def test_a_device_is_ready_when_udev_has_finished_with_it(machine: Machine) -> None:
    machine.make("null0")
    machine.link("dev/char/1:3", machine.put("devices/null"))
    (machine.place / "udev" / "control").write_text("")
    assert machine.found("dev/*") == [("dev/null0", "c1:3", "udev has not finished with it")]
    (machine.place / "udev" / "data").mkdir()
    (machine.place / "udev" / "data" / "c1:3").write_text("")
    assert machine.found("dev/*") == [("dev/null0", "c1:3", None)]


def test_a_gpu_of_nvidia_has_the_uuid_that_its_driver_says_of_its_number(machine: Machine) -> None:
    """The minor numbers are in another order than the addresses, by which CUDA may count.

    sysfs does not have these nodes, so udev never finishes with them, and they are not waited for.
    """
    (machine.place / "udev" / "control").write_text("")
    for bus, minor, uuid in (("0000:18:00.0", 1, "GPU-aa"), ("0000:af:00.0", 0, "GPU-????????-????")):
        (machine.place / "nvidia" / bus).mkdir(parents=True)
        said = f"Model: \t\t NVIDIA L4\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
        (machine.place / "nvidia" / bus / "information").write_text(said)
        machine.link(f"bus/pci/devices/{bus}", machine.put(f"devices/pci/{bus}", vendor="0x10de", device="0x27b8"))
        machine.make(f"nvidia{minor}", minor, major=195)
    machine.make("nvidiactl", 255, major=195)
    found = {
        os.path.basename(node.path): (
            node.place,
            node.attributes.get("uuid"),
            node.attributes.get("vendor"),
            node.problem,
        )
        for node in machine.nodes.find(StaticResource((f"{machine.place}/dev/nvidia*",)))
    }
    assert found == {
        "nvidia0": ("/devices/pci/0000:af:00.0", None, "10de", None),
        "nvidia1": ("/devices/pci/0000:18:00.0", "GPU-aa", "10de", None),
        "nvidiactl": ("", None, None, None),
    }


def test_a_node_of_a_graphics_card_matches_by_its_name(machine: Machine) -> None:
    """Each card has two nodes."""
    for minor, name in ((0, "card0"), (128, "renderD128")):
        machine.make(f"dri/{name}", minor, major=226)
        place = machine.put(f"devices/pci/gpu/drm/{name}", uevent=f"DEVNAME=dri/{name}")
        machine.link(f"dev/char/226:{minor}", place)
        machine.link(f"class/drm/{name}", place)
    machine.put("devices/pci/gpu", vendor="0x1002")
    match = {"subsystem": "drm", "vendor": "1002", "name": "renderD*"}
    (found,) = machine.nodes.find(StaticResource(match=match))
    assert found.path == f"{machine.place}/dev/dri/renderD128"


def test_the_attributes_of_a_device_are_those_of_the_nearest_usb_device(machine: Machine) -> None:
    """The hub above a device has a serial number, too."""
    machine.make("ttyUSB0")
    machine.put("devices/usb1", idVendor="1d6b", idProduct="0002", serial="0000:00:14.0")
    machine.put("devices/usb1/1-1", idVendor="0403", idProduct="6001")
    machine.put("devices/usb1/1-1/1-1:1.0", bInterfaceNumber="00")
    place = machine.put("devices/usb1/1-1/1-1:1.0/ttyUSB0", uevent="MAJOR=1\nMINOR=3\nDEVNAME=ttyUSB0")
    machine.link("dev/char/1:3", place)
    machine.link("class/tty/ttyUSB0", place)
    match = {"subsystem": "tty", "vendor": "0403", "product": "6*", "interface": "00"}
    (found,) = machine.nodes.find(StaticResource(match=match))
    assert found.attributes == {"subsystem": "tty", "vendor": "0403", "product": "6001", "interface": "00"}
    assert found.identity == "c1:3 /devices/usb1/1-1/1-1:1.0/ttyUSB0"
    assert [*machine.nodes.find(StaticResource(match={**match, "serial": "*:*"}))] == []


def test_the_attributes_of_a_pci_device_have_no_prefix(machine: Machine) -> None:
    machine.make("gpu0")
    machine.put("devices/pci0", vendor="0x10de", device="0x2204")
    place = machine.put("devices/pci0/gpu/gpu0", uevent="DEVNAME=gpu0")
    machine.link("dev/char/1:3", place)
    machine.link("class/gpu/gpu0", place)
    (found,) = machine.nodes.find(StaticResource(match={"subsystem": "gpu", "vendor": "10de"}))
    assert (found.node, found.attributes["product"]) == (str(machine.place / "dev" / "gpu0"), "2204")


def found_alone(machine: Machine) -> FoundNode:
    (found,) = machine.nodes.find(StaticResource((str(machine.place / "dev" / "*"),)))
    return found


def acl_of(path: Path) -> dict[int, int]:
    return dict(users_of(decoded(os.getxattr(path, ATTRIBUTE))))


def test_users_are_admitted_to_a_node_and_taken_away_again(machine: Machine) -> None:
    node = machine.make("null0")
    os.chmod(node, 0o660)
    found = found_alone(machine)
    assert machine.nodes.admit(found, {1000: 6, 1001: 4}, only=True) is None
    assert acl_of(node) == {1000: 6, 1001: 4}
    assert machine.nodes.admit(found, {1002: 6}, only=False) is None
    assert acl_of(node) == {1000: 6, 1001: 4, 1002: 6}
    assert machine.nodes.admit(found, {}, only=True) is None
    assert not os.listxattr(node)
    assert stat.S_IMODE(node.stat().st_mode) == 0o660


def test_a_node_that_became_another_or_that_others_may_open_is_left_alone(machine: Machine) -> None:
    node = machine.make("null0")
    found = found_alone(machine)
    os.chmod(node, 0o666)
    assert (machine.nodes.admit(found, {1000: 6}, only=True) or "").startswith("everybody may open it: set OWNER")
    os.chmod(node, 0o660)
    os.chown(node, 1000, 0)
    assert (machine.nodes.admit(found, {1000: 6}, only=True) or "").startswith("the user 1000 owns it")
    node.unlink()
    assert machine.nodes.admit(found, {}, only=True) == "its access cannot be changed: No such file or directory"
    machine.make("null0", 5)
    assert machine.nodes.admit(found, {1000: 6}, only=True) == "it is another device by now"
    assert not os.listxattr(node)


@pytest.mark.parametrize(
    ("lines", "is_open"),
    [("Q:uaccess\nG:uaccess\nV:1\n", True), ("G:uaccess\nV:1\n", False), ("G:uaccess\n", True), ("V:1\n", False)],
)
def test_a_node_that_udev_opens_to_whoever_sits_at_the_machine_is_left_alone(
    machine: Machine, lines: str, is_open: bool
) -> None:
    machine.make("null0")
    (machine.place / "udev" / "data").mkdir()
    (machine.place / "udev" / "data" / "c1:3").write_text(lines)
    why = machine.nodes.admit(found_alone(machine), {}, only=True) or ""
    assert why.startswith("udev lets whoever sits at the machine open it (uaccess): set OWNER") is is_open


async def test_a_change_of_permissions_is_noticed_where_access_goes_by_leases(machine: Machine) -> None:
    node = machine.make("null0")
    resource = StaticResource((str(machine.place / "dev" / "*"),), access="acl")
    with machine.nodes.watch([resource]) as watch, trio.fail_after(10):
        os.chmod(node, 0o640)
        await watch.wait()


@pytest.mark.parametrize("pattern", ["dev/ttyUSB*", "dev/serial/by-id/*", "dev/*/port"])
async def test_a_watch_notices_a_node_also_in_a_directory_that_comes_with_it(machine: Machine, pattern: str) -> None:
    resource = StaticResource((str(machine.place / pattern),))
    with machine.nodes.watch([resource]) as watch, trio.fail_after(10):
        machine.make(pattern.removeprefix("dev/").replace("*", "a"))
        await watch.wait()
