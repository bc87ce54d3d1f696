"""The health of the devices of a DRA driver: messages, times and bounds."""

from __future__ import annotations

import math

import pytest

from plugind.protocol.handlers.dra_health import (
    MAX_DEVICES,
    DeviceHealthError,
    DeviceHealths,
    DeviceReport,
    DRADeviceHealth,
    truncated,
)

HEALTHY, UNHEALTHY, UNKNOWN = DRADeviceHealth.HEALTHY, DRADeviceHealth.UNHEALTHY, DRADeviceHealth.UNKNOWN


def report(device: str, status: DRADeviceHealth = HEALTHY, message: str = "", timeout: float = 0) -> DeviceReport:
    return DeviceReport("pool-0", device, status, message, timeout)


def shown(devices: DeviceHealths) -> list[tuple[str, DRADeviceHealth, str, float]]:
    return [(device.device, device.status, device.message, device.since) for device in devices]


@pytest.mark.parametrize(
    ("length", "kept", "end"),
    [(0, 0, ""), (1023, 1023, "x"), (1024, 1024, "x"), (1025, 1024, "..."), (9999, 1024, "...")],
)
def test_a_message_above_1024_characters_becomes_1021_and_three_dots(length: int, kept: int, end: str) -> None:
    """TestTruncateHealthMessage."""
    text = truncated("x" * length)
    assert (len(text), text.endswith(end), text.count("x")) == (
        kept,
        True,
        min(length, kept - (3 if end == "..." else 0)),
    )


def test_each_message_is_the_whole_list_and_of_two_reports_of_a_device_the_last_counts() -> None:
    """TestBuildDeviceHealth, TestUpdateHealthInfo."""
    devices = DeviceHealths()
    devices.take([report("gpu-0"), report("gpu-1", UNHEALTHY), report("gpu-1", UNHEALTHY, "ECC")], 1.0)
    assert shown(devices) == [("gpu-0", HEALTHY, "", 1.0), ("gpu-1", UNHEALTHY, "ECC", 1.0)]
    devices.take([report("gpu-1", UNHEALTHY, "ECC, twice"), report("gpu-0", UNHEALTHY)], 5.0)
    # Another message is no other beginning.
    assert shown(devices) == [("gpu-1", UNHEALTHY, "ECC, twice", 1.0), ("gpu-0", UNHEALTHY, "", 5.0)]
    assert devices.counts() == {HEALTHY: 0, UNHEALTHY: 2, UNKNOWN: 0}


@pytest.mark.parametrize(
    ("timeout", "expires"), [(0, 31.0), (-1, 31.0), (10, 11.0), (3600, 3601.0), (2**63 - 1, 2.0**63)]
)
def test_a_device_without_a_message_in_its_time_is_unknown_and_its_message_is_cleared(
    timeout: int, expires: float
) -> None:
    """TestGetHealthInfo: 0 or less means 30 s (consumers C.5)."""
    devices = DeviceHealths()
    devices.take([report("gpu-0", UNHEALTHY, "ECC", timeout)], 1.0)
    assert devices.next_expiry == expires
    devices.expire(math.nextafter(expires, 0))
    assert shown(devices) == [("gpu-0", UNHEALTHY, "ECC", 1.0)]
    devices.expire(expires)
    assert shown(devices) == [("gpu-0", UNKNOWN, "", expires)]
    assert devices.next_expiry == math.inf


def test_a_device_that_is_missing_in_a_message_is_unknown_when_its_own_time_has_passed() -> None:
    """TestUpdateHealthInfo: the others go on."""
    devices = DeviceHealths()
    devices.take([report("gpu-0"), report("gpu-1", timeout=60)], 0.0)
    for second in (20.0, 40.0):
        devices.take([report("gpu-0")], second)
        devices.expire(second)
    assert shown(devices) == [("gpu-1", HEALTHY, "", 0.0), ("gpu-0", HEALTHY, "", 0.0)]
    assert (devices.next_expiry, devices.last_expiry) == (60.0, 70.0)
    devices.expire(60.0)
    assert shown(devices) == [("gpu-1", UNKNOWN, "", 60.0), ("gpu-0", HEALTHY, "", 0.0)]
    devices.take([report("gpu-1")], 61.0)
    assert shown(devices) == [("gpu-0", HEALTHY, "", 0.0), ("gpu-1", HEALTHY, "", 61.0)]


def test_a_device_that_is_reported_as_unknown_expires_without_another_beginning() -> None:
    """TestGetHealthInfoRobust."""
    devices = DeviceHealths()
    devices.take([report("gpu-0", UNKNOWN, "no answer"), report("gpu-1", UNKNOWN)], 1.0)
    assert shown(devices)[0] == ("gpu-0", UNKNOWN, "no answer", 1.0)
    devices.expire(31.0)
    assert shown(devices) == [("gpu-0", UNKNOWN, "", 1.0), ("gpu-1", UNKNOWN, "", 1.0)]
    assert (devices.next_expiry, devices.last_expiry) == (math.inf, -math.inf)


def test_when_the_connection_ends_all_devices_are_unknown() -> None:
    """TestClearDriver: they are not forgotten, and only those of this instance."""
    devices = DeviceHealths()
    devices.take([report("gpu-0"), report("gpu-1", UNHEALTHY, "ECC")], 1.0)
    devices.lose(7.0)
    assert shown(devices) == [("gpu-0", UNKNOWN, "", 7.0), ("gpu-1", UNKNOWN, "", 7.0)]


def test_a_message_with_too_many_devices_or_a_bad_name_changes_nothing() -> None:
    devices = DeviceHealths()
    devices.take([report("gpu-0")], 1.0)
    for reports, why in (
        ([report(f"gpu-{number}") for number in range(MAX_DEVICES + 1)], "4097 devices, at most 4096"),
        ([report("")], 'named ""'),
        ([report("x" * 254)], "1 to 253 characters"),
        ([DeviceReport("a\nb", "gpu-0", HEALTHY)], r'named "a\\n'),
    ):
        with pytest.raises(DeviceHealthError) as caught:
            devices.take(reports, 2.0)
        assert why.replace(r"\\", "\\") in str(caught.value)
    assert shown(devices) == [("gpu-0", HEALTHY, "", 1.0)]


def test_of_a_driver_that_renames_its_devices_the_oldest_are_forgotten() -> None:
    devices = DeviceHealths()
    for first in range(0, 10 * MAX_DEVICES, MAX_DEVICES // 2):
        devices.take([report(f"gpu-{first + number}", timeout=1e9) for number in range(MAX_DEVICES // 2)], 1.0)
    assert len(devices) == MAX_DEVICES
    assert [device.device for device in devices][-1] == f"gpu-{10 * MAX_DEVICES - 1}"
