"""What CSI drivers say: which answers are refused, and the facts that users are shown. Consumers F.1 is the list."""

from __future__ import annotations

import attrs
import pytest

from plugind.protocol.errors import ConfigError, ValidationError
from plugind.protocol.handlers.csi import (
    MAX_SEGMENTS,
    MOST_VOLUMES,
    NOT_READY,
    CSIConfig,
    DriverFacts,
    NodeInfo,
    NotKnown,
    changes,
    check_driver_name,
    checked_node_info,
    short_capabilities,
    shown_health,
)
from plugind.protocol.handlers.csi_topology import Topologies
from plugind.protocol.health.checks import Checked, disconnected
from plugind.protocol.plugins.health import Health, Report, bounded
from plugind.protocol.plugins.info import Plugin

EMPTY_ID = "error adding CSI driver node info: driverNodeID must not be empty"


def driver(name: str, socket: str = "", generation: int = 1, *, privileged: bool = True) -> Plugin:
    socket = socket or f"/reg/{name}.sock"
    return Plugin("CSIPlugin", name, "/run/csi.sock", ("1.0.0",), socket, generation, privileged=privileged)


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refresh", [None, 10, 3600.0])
def test_node_info_is_refreshed_each_ten_seconds_at_the_most(refresh: float | None) -> None:
    """TestGetNodeAllocatableUpdatePeriod: no period means none."""
    assert CSIConfig(refresh).refresh == refresh


@pytest.mark.parametrize("refresh", [9.9, 0, -1, float("nan"), float("inf"), "10"])
def test_another_period_is_refused(refresh: float) -> None:
    with pytest.raises(ConfigError, match=r"CSIConfig.refresh is .*: it must be a finite number, 10 or more"):
        CSIConfig(refresh)


# --- the answers ------------------------------------------------------------------------------------------------------


def test_a_driver_must_have_the_name_that_its_registrar_gives() -> None:
    check_driver_name("a.example.com", "a.example.com", "/run/a.sock")
    with pytest.raises(ValidationError) as caught:
        check_driver_name("b.example.com", "a.example.com", "/run/a.sock")
    text = 'the driver at /run/a.sock calls itself "b.example.com", its registrar "a.example.com"'
    assert str(caught.value) == text


TOO_LONG = "the node id of the driver has {} bytes, and the CSI specification allows 256"
#: What NodeGetInfo answers, and what is made of it.
INFOS: list[tuple[str, str, int, dict[str, str], NodeInfo]] = [
    ("id, volumes and topology come through", "node-7", 16, {"b": "2", "a": "1"},
     NodeInfo("node-7", 16, (("a", "1"), ("b", "2")))),
    ("no topology", "node-7", 16, {}, NodeInfo("node-7", 16)),
    ("0 is no limit", "node-7", 0, {}, NodeInfo("node-7", 0)),
    ("max valid", "node-7", MOST_VOLUMES, {}, NodeInfo("node-7", MOST_VOLUMES)),
    ("above int32 is cut", "node-7", MOST_VOLUMES + 1, {},
     NodeInfo("node-7", MOST_VOLUMES, (), ("max_volumes_per_node is 2147483648: it is cut to 2147483647",))),
    ("negative is left out", "node-7", -1, {},
     NodeInfo("node-7", None, (), ("max_volumes_per_node is -1, which is not valid: it is left out",))),
    ("256 bytes", "n" * 256, 0, {}, NodeInfo("n" * 256, 0)),
    ("257 bytes", "n" * 257, 0, {}, NodeInfo("n" * 257, 0, (), (TOO_LONG.format(257),))),
    ("bytes and not characters", "é" * 129, 0, {}, NodeInfo("é" * 129, 0, (), (TOO_LONG.format(258),))),
]  # fmt: skip


@pytest.mark.parametrize(("node_id", "volumes", "segments", "expected"), [row[1:] for row in INFOS],
                         ids=[row[0] for row in INFOS])  # fmt: skip
def test_the_answer_to_node_get_info_is_checked(
    node_id: str, volumes: int, segments: dict[str, str], expected: NodeInfo
) -> None:
    """TestClientNodeGetInfo: id, max volumes and topology come through. TestInstallCSIDriver: nil topology, max valid,
    above int32 cut, zero."""
    assert checked_node_info(node_id, volumes, segments) == expected


def test_a_driver_without_a_node_id_is_refused_with_the_text_of_the_kubelet() -> None:
    """TestInstallCSIDriver: an empty id fails."""
    with pytest.raises(ValidationError) as caught:
        checked_node_info("", 16, {"a": "1"})
    assert str(caught.value) == EMPTY_ID


def test_a_topology_has_a_bounded_number_of_segments() -> None:
    most = {str(number): "z" for number in range(MAX_SEGMENTS)}
    assert len(checked_node_info("node-7", 0, most).topology) == MAX_SEGMENTS
    with pytest.raises(ValidationError, match="the topology of the driver has 57 segments, at most 56 are taken"):
        checked_node_info("node-7", 0, {**most, "more": "z"})


def test_no_fact_is_cut_off_of_a_driver_that_keeps_to_the_specification() -> None:
    """64 segments were taken, and 64 facts are kept in all. The specification limits a topology to 4 KiB."""
    key, text = "topology.example.com/" + "k" * 10, "v" * 40
    most = {f"{key}{number:02}": text for number in range(MAX_SEGMENTS)}
    node = checked_node_info("n" * 256, MOST_VOLUMES, most)
    said = DriverFacts(node, "\N{SNOWMAN}" * 512, "1.0.0", NotKnown("x" * 512), NotKnown("x" * 512), "x" * 512)
    report = bounded(Health.HEALTHY, "", said.as_texts(), Report())
    assert (len(report.facts), report.warnings) == (MAX_SEGMENTS + 7, ())


def test_facts_are_escaped_as_the_texts_about_a_collision_are() -> None:
    """The log showed ``\\n`` in the one and ``\\\\n`` in the other."""
    node = checked_node_info("node\t7", 0, {"a\nb": "v\a"})
    facts = attrs.evolve(FACTS, node=node).as_texts()
    assert (facts["node-id"], facts["topology.a\\nb"]) == ("node\\t7", "v\\x07")
    topologies = Topologies()
    topologies.put(driver("a.example.com"), (("a\nb", "w"),))
    assert '"a\\nb":"v\\x07"' in str(topologies.collision(driver("b.example.com"), node.topology))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("zone", "z1"),
        ("topology.example.com/zone", "z1.a_b-C"),
        ("Zone", "1"),
        # A label of Kubernetes may be empty.
        ("zone", ""),
        ("z" * 63, "z" * 63),
    ],
)
def test_a_segment_as_the_specification_has_it_is_no_reason_for_a_warning(key: str, text: str) -> None:
    assert checked_node_info("node-7", 0, {key: text}).warnings == ()


@pytest.mark.parametrize(
    ("key", "text", "shown"),
    [
        ("a\nb", "v\a", '"a\\nb":"v\\x07"'),
        ("zone ", "z1", '"zone ":"z1"'),
        ("", "z1", '"":"z1"'),
        ("/zone", "z1", '"/zone":"z1"'),
        ("a/b/c", "z1", '"a/b/c":"z1"'),
        ("Example.com/zone", "z1", '"Example.com/zone":"z1"'),
        ("z" * 64, "z1", f'"{"z" * 64}":"z1"'),
        ("zone", "z 1", '"zone":"z 1"'),
        ("zone", "-z", '"zone":"-z"'),
        ("zone", "é", '"zone":"é"'),
    ],
)
def test_a_segment_that_the_specification_does_not_allow_is_taken_with_a_warning(
    key: str, text: str, shown: str
) -> None:
    """A kubelet cannot make a label of it. What does not print is escaped as in all texts of plugins (fault 21)."""
    info = checked_node_info("node-7", 0, {"zone-2": "z1", key: text})
    assert dict(info.topology)[key] == text
    assert info.warnings == (f"the topology has {shown}, which the CSI specification does not allow",)


def test_many_wrong_segments_are_one_warning() -> None:
    info = checked_node_info("node-7", 0, {"a b": "1", "c d": "2", "e": "3"})
    assert info.warnings == ('the topology has "a b":"1", which the CSI specification does not allow, and 1 more such',)


# --- topologies -------------------------------------------------------------------------------------------------------

ZONE_1, ZONE_2 = (("zone", "z1"),), (("zone", "z2"),)
COLLISION = (
    'detected topology value collision: driver reported "zone":"z2" but existing label is "zone":"z1"'
    ' (of the driver "a.example.com")'
)


def test_two_drivers_must_not_give_a_key_different_values() -> None:
    """TestInstallCSIDriver: a topology collision fails; another driver, new keys and the same value do not."""
    topologies = Topologies()
    topologies.put(driver("a.example.com"), ZONE_1)
    other = driver("b.example.com")
    assert topologies.collision(other, ZONE_2) == COLLISION
    for harmless in (ZONE_1, (("rack", "r1"),), ()):
        assert topologies.collision(other, harmless) is None


def test_the_instances_of_one_driver_do_not_collide() -> None:
    """TestInstallCSIDriver: the same driver again."""
    topologies = Topologies()
    topologies.put(driver("a.example.com"), ZONE_1)
    assert topologies.collision(driver("a.example.com", "/reg/new.sock", 2), ZONE_2) is None


def test_a_driver_that_has_gone_collides_with_none() -> None:
    """TestUninstallCSIDriver: its entry goes, others stay, and an unknown driver is no error."""
    topologies = Topologies()
    topologies.put(driver("a.example.com"), ZONE_1)
    topologies.put(driver("a.example.com", "/reg/new.sock", 2), ZONE_1)
    topologies.remove(driver("a.example.com"))
    topologies.remove(driver("unknown"))
    assert topologies.collision(driver("b.example.com"), ZONE_2) == COLLISION
    topologies.remove(driver("a.example.com", "/reg/new.sock", 2))
    assert topologies.collision(driver("b.example.com"), ZONE_2) is None
    assert topologies == Topologies()


def test_the_newest_answer_of_a_driver_counts() -> None:
    topologies = Topologies()
    topologies.put(driver("a.example.com"), ZONE_1)
    topologies.put(driver("a.example.com"), ZONE_2)
    assert topologies.collision(driver("b.example.com"), ZONE_2) is None
    assert topologies.collision(driver("b.example.com"), ZONE_1) is not None


def test_an_untrusted_driver_keeps_no_privileged_one_out() -> None:
    """Fault 80: whoever may register drivers of another user must not lock those of root out by a label."""
    topologies = Topologies()
    topologies.put(driver("a.example.com", privileged=False), ZONE_1)
    assert topologies.collision(driver("b.example.com"), ZONE_2) is None
    assert topologies.collision(driver("b.example.com", privileged=False), ZONE_2) == COLLISION


# --- facts ------------------------------------------------------------------------------------------------------------

FACTS = DriverFacts(
    NodeInfo("node-7", 16, (("zone", "z1"),)),
    "1.2.3",
    "1.0.0",
    ("STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS"),
    ("CONTROLLER_SERVICE",),
    "2026-01-02T03:04:05.000Z",
)


def test_the_facts_have_their_names() -> None:
    assert FACTS.as_texts() == {
        "node-id": "node-7",
        "max-volumes": "16",
        "vendor-version": "1.2.3",
        "capabilities.node": "STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS",
        "capabilities.plugin": "CONTROLLER_SERVICE",
        "csi-version": "1.0.0",
        "refreshed": "2026-01-02T03:04:05.000Z",
        "topology.zone": "z1",
    }


def test_a_driver_that_did_not_say_what_it_can_do_is_not_complete() -> None:
    facts = attrs.evolve(FACTS, node_capabilities=NotKnown("UNAVAILABLE: starting"), plugin_capabilities=())
    assert (FACTS.is_complete, facts.is_complete) == (True, False)
    assert facts.as_texts()["capabilities.node"] == "unknown: UNAVAILABLE: starting"
    assert facts.as_texts()["capabilities.plugin"] == "none"


def test_one_long_text_keeps_no_other_fact_out() -> None:
    """Fault 94."""
    texts = attrs.evolve(FACTS, vendor_version="v" * 5000, node_capabilities=NotKnown("x" * 5000)).as_texts()
    assert max(map(len, texts.values())) < 530
    assert texts["vendor-version"].endswith("…(+4488)")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("GET_VOLUME_STATS, STAGE_UNSTAGE_VOLUME, EXPAND_VOLUME", "stage, expand, stats"),
        ("VOLUME_MOUNT_GROUP, 17, SINGLE_NODE_MULTI_WRITER", "multi-writer, mount-group, 17"),
        ("none", "none"),
        ("unknown: UNAVAILABLE: a, b", "unknown: UNAVAILABLE: a, b"),
    ],
)  # fmt: skip
def test_what_a_driver_can_do_is_said_in_short_words(said: str, shown: str) -> None:
    assert short_capabilities(said) == shown


def test_a_change_names_each_fact_but_the_time() -> None:
    before = FACTS.as_texts()
    after = attrs.evolve(FACTS, node=NodeInfo("node-7", None, (("rack", "r1"),)), refreshed="later").as_texts()
    assert changes(before, after) == (
        "topology.rack is r1; max-volumes is not known any more, was 16; topology.zone is not known any more, was z1"
    )
    assert changes(before, {**before, "max-volumes": "8", "refreshed": "later"}) == "max-volumes is 8, was 16"
    assert changes(before, {**before, "refreshed": "later"}) == ""


# --- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checked", "may_start", "shown"),
    [
        (Checked(), False, (Health.UNKNOWN, "", 0)),
        (Checked(failures=1), True, (Health.STARTING, NOT_READY, 0)),
        (Checked(Health.UNHEALTHY, NOT_READY, 3), True, (Health.STARTING, NOT_READY, 0)),
        (Checked(Health.UNHEALTHY, NOT_READY, 3), False, (Health.UNHEALTHY, NOT_READY, 3)),
        (Checked(Health.UNHEALTHY, "no answer within 3s", 4), False, (Health.UNHEALTHY, "no answer within 3s", 4)),
        (Checked(Health.HEALTHY, failures=2), True, (Health.HEALTHY, "", 2)),
        (Checked(Health.HEALTHY), False, (Health.HEALTHY, "", 0)),
        (disconnected("gone"), True, (Health.DISCONNECTED, "gone", 0)),
    ],
)
def test_a_driver_that_is_not_ready_is_starting_for_a_while(
    checked: Checked, may_start: bool, shown: tuple[Health, str, int]
) -> None:
    assert shown_health(checked, may_start=may_start) == shown
