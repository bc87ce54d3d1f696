"""Static devices: what the operator may say, which devices that makes, and what a lease of them gets."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from plugind.protocol.devices.static import FoundNode, answer, doubts, listed
from plugind.protocol.errors import ConfigError
from plugind.protocol.leases.values import Node
from plugind.protocol.plugins.static_devices import StaticResource, StaticResourceError, check_static

SERIAL = StaticResource(("/dev/ttyUSB*",))
FIRST = FoundNode("/dev/ttyUSB0", "/dev/ttyUSB0", "c188:0", "/devices/usb1")
SECOND = FoundNode("/dev/ttyUSB10", "/dev/ttyUSB10", "c188:10")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "static devices need paths, or a table match, and not both"),
        ({"paths": ("/dev/a",), "match": {"subsystem": "tty"}}, "not both"),
        ({"paths": ("dev/a",)}, '"dev/a" is not an absolute path'),
        ({"paths": ("/dev/a",), "nodes": ("b",)}, '"b" is not an absolute path'),
        ({"match": {"vendor": "0403"}}, "match needs a subsystem"),
        ({"match": {"subsystem": "t*"}}, 'the subsystem "t\\*" must be one name'),
        (
            {"match": {"subsystem": "tty", "colour": "red"}},
            '"colour" is no attribute: match has subsystem, name, vendor',
        ),
        ({"paths": ("/dev/a",), "id": "{path}"}, "there is no {path}, but {interface}, {name}"),
        ({"paths": ("/dev/a",), "id": "{name.x}"}, "there is no {name.x}"),
        ({"paths": ("/dev/a",), "env": {"A": "{"}}, 'the variable A is "{"'),
        ({"paths": ("/dev/a",), "env": {"A=B": "x"}}, '"A=B" cannot be the name of a variable'),
        ({"paths": ("/dev/a",), "env": {"PLUGIND_LEASE": "x"}}, '"PLUGIND_LEASE" cannot be the name of a variable'),
        ({"paths": ("/dev/a",), "permissions": "rx"}, 'the permissions are "rx"'),
        ({"paths": ("/dev/a",), "shared": 0}, "shared is 0: it must be a whole number from 1 to 64"),
    ],
)
def test_a_resource_that_cannot_work_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        StaticResource(**given)


def test_no_resource_has_a_name_that_no_plugin_could_have() -> None:
    with pytest.raises(ConfigError, match=r'static devices "serial": it is not of the form vendor.domain/name'):
        check_static({"serial": SERIAL})


def shown(resource: StaticResource, *found: FoundNode) -> list[tuple[str, str]]:
    return [(device.id, device.health) for device in listed("lab/serial", resource, found, {}).listed.devices.values()]


def test_devices_are_listed_in_natural_order_with_the_last_part_of_their_path_as_id() -> None:
    assert shown(SERIAL, SECOND, FIRST) == [("ttyUSB0", "Healthy"), ("ttyUSB10", "Healthy")]


@pytest.mark.parametrize(
    ("form", "attributes", "expected"),
    [
        ("{name}", {}, "usb-a%2Cb%3D1"),
        ("{vendor}:{serial}", {"vendor": "0403", "serial": "A1 B"}, "0403:A1%20B"),
        ("{serial}", {}, "%2Fdev%2Fby-id%2Fusb-a%2Cb%3D1"),
    ],
)
def test_an_id_has_no_character_that_separates_others(form: str, attributes: dict[str, str], expected: str) -> None:
    node = FoundNode("/dev/by-id/usb-a,b=1", "/dev/ttyUSB0", "c188:0", attributes=attributes)
    assert shown(StaticResource(("/dev/by-id/*",), id=form), node) == [(expected, "Healthy")]


def test_a_device_whose_uuid_is_asked_for_and_not_known_is_withheld() -> None:
    """A variable that is empty would hide all GPUs from some programs, and none from others."""
    gpus = StaticResource(("/dev/nvidia[0-9]*",), id="{uuid}", env={"CUDA_VISIBLE_DEVICES": "{uuid}"})
    known = FoundNode("/dev/nvidia1", "/dev/nvidia1", "c195:1", attributes={"uuid": "GPU-aa"})
    unknown = FoundNode("/dev/nvidia0", "/dev/nvidia0", "c195:0")
    assert shown(gpus, known, unknown) == [
        ("%2Fdev%2Fnvidia0", "its UUID is not known: the driver tells it once a program has used the GPU"),
        ("GPU-aa", "Healthy"),
    ]
    assert answer(gpus, "nvidia.com/gpu", {"GPU-aa": known}, []).env == {"CUDA_VISIBLE_DEVICES": "GPU-aa"}


def test_of_two_links_to_one_node_the_second_is_withheld_in_another_resource_too() -> None:
    numbers = dict[str, str]()
    links = [FoundNode("/dev/by-id/a", FIRST.node, FIRST.number), FoundNode("/dev/by-id/b", "/dev/x", "c9:9")]
    assert listed("lab/serial", SERIAL, [FIRST], numbers).nodes == {"ttyUSB0": FIRST}
    second = listed("lab/links", StaticResource(("/dev/by-id/*",)), links, numbers)
    assert [(device.id, device.health) for device in second.listed.devices.values()] == [
        ("a", "the same device as lab/serial=ttyUSB0"),
        ("b", "Healthy"),
    ]
    assert [*second.nodes] == ["b"]


def test_of_two_devices_with_one_id_the_second_is_withheld() -> None:
    other = FoundNode("/dev/z/ttyUSB0", "/dev/z/ttyUSB0", "c188:7")
    assert shown(SERIAL, FIRST, other) == [
        ("ttyUSB0", "Healthy"),
        ("%2Fdev%2Fz%2FttyUSB0", "its id ttyUSB0 is that of another device: see the setting id"),
    ]


def test_a_node_with_a_problem_or_with_a_path_that_no_variable_may_have_is_withheld() -> None:
    loose = attrs.evolve(FIRST, problem="others may replace it")
    comma = FoundNode("/dev/b", "/dev/a,b", "c1:1")
    assert shown(SERIAL, loose, comma) == [
        ("b", "its path has characters that no variable may have"),
        ("ttyUSB0", "others may replace it"),
    ]


def test_a_shared_device_is_listed_once_for_each_lease_that_can_have_it() -> None:
    found = listed("lab/serial", attrs.evolve(SERIAL, shared=2), [FIRST], {})
    assert [*found.listed.devices] == ["ttyUSB0::0", "ttyUSB0::1"]
    assert found.nodes == {"ttyUSB0::0": FIRST, "ttyUSB0::1": FIRST}


def test_a_lease_gets_the_nodes_and_variables_of_its_devices() -> None:
    env = {"PORTS": "{path}", "IDS": "{id}", "LINKS": "{link}", "MODE": "fast"}
    resource = attrs.evolve(SERIAL, env=env, permissions="r")
    link = FoundNode("/dev/by-id/a", "/dev/ttyUSB1", "c188:1", "/devices/usb2")
    made = answer(
        resource, "lab/serial", {"ttyUSB0": FIRST, "a": link}, [FoundNode("/dev/common", "/dev/common", "c1:3")]
    )
    assert made.env == {
        "PORTS": "/dev/ttyUSB0,/dev/ttyUSB1",
        "IDS": "ttyUSB0,a",
        "LINKS": "/dev/ttyUSB0,/dev/by-id/a",
        "MODE": "fast",
    }
    assert made.nodes == tuple(Node(path, path, "r") for path in ("/dev/ttyUSB0", "/dev/ttyUSB1", "/dev/common"))
    assert made.identities == {"lab/serial=ttyUSB0": "c188:0 /devices/usb1", "lab/serial=a": "c188:1 /devices/usb2"}


def test_two_resources_with_the_same_devices_are_named_once() -> None:
    link = attrs.evolve(FIRST, path="/dev/serial/a")
    found = {"/dev/ttyUSB*": [FIRST, SECOND], "/dev/serial/*": [link], "/dev/ttyUSB10": [SECOND]}

    def find(resource: StaticResource) -> list[FoundNode]:
        return [node for pattern in resource.paths for node in found.get(pattern, [])]

    resources = {
        name: StaticResource(paths)
        for name, paths in {
            "lab/a": ("/dev/ttyUSB*", "/dev/serial/*"),
            "lab/b": ("/dev/serial/*", "/dev/ttyUSB10"),
            "lab/c": ("/dev/ttyUSB10",),
            "lab/d": ("/dev/none*",),
        }.items()
    }
    assert list(doubts(resources, find, lambda _: None)) == [
        "ttyUSB0 of lab/a cannot be leased: the same device as lab/a=a",
        "/dev/serial/* of lab/b is also /dev/serial/* of lab/a, which gets the device",
        "/dev/ttyUSB10 of lab/c is also /dev/ttyUSB10 of lab/b, which gets the device",
        "/dev/ttyUSB10 of lab/c is also /dev/ttyUSB10 of lab/a, which gets the device",
    ]


def test_nodes_that_cannot_be_leased_are_named_with_their_reason_which_is_said_once() -> None:
    loose, odd = (attrs.evolve(FIRST, path=path, problem=why) for path, why in (("/x/a", "loose"), ("/x/b", "odd")))
    same = [attrs.evolve(FIRST, path=f"/x/{name}") for name in "cd"]
    resources = {"lab/x": StaticResource(("/x/*",), nodes=("/y",), shared=2), "lab/z": StaticResource(("/z",))}

    def find(resource: StaticResource) -> list[FoundNode]:
        return [SECOND] if resource.paths == ("/z",) else [loose, odd, *same]

    given = [(attrs.evolve(SECOND, path="/dev/bus/1"), "lab/plugin")]
    assert list(doubts(resources, find, {"/x/*": "loose", "/y": "far"}.get, given)) == [
        "/x/* of lab/x cannot be leased: loose",
        "/y of lab/x cannot be leased: far",
        "b of lab/x cannot be leased: odd",
        "d of lab/x cannot be leased: the same device as lab/x=c",
        "/dev/ttyUSB10 of lab/z is also /dev/bus/1 of lab/plugin",
    ]


def test_all_problems_of_a_resource_are_named_with_their_fields() -> None:
    with pytest.raises(StaticResourceError, match="not an absolute path; the permissions are") as caught:
        StaticResource(("/a",), nodes=("b",), permissions="q")
    assert [field for field, _ in caught.value.problems] == ["nodes", "permissions"]
