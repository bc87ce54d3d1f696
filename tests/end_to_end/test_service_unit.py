"""The unit and its drop-ins, as systemd's own tools judge them. Nothing is started; ``test_booted_service.py`` does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plugind.actors.console.status_socket import UNIT
from plugind.actors.console.unit_files import drop_ins, files, quoted
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import finish

pytestmark = pytest.mark.extended

#: What systemd holds against each of the units; a line of the table in docs/operations.md says why it has to be so.
BASE = {
    "RootDirectory=/RootImage=",
    "User=/DynamicUser=",
    "PrivateUsers=",
    "ProtectProc=",
    "ProcSubset=",
    "RestrictAddressFamilies=~AF_UNIX",
    "DeviceAllow=",
    "UMask=",
}
CHOWN = {"CapabilityBoundingSet=~CAP_(CHOWN|FSETID|SETFCAP)", "SystemCallFilter=~@privileged"}
KILL = {"CapabilityBoundingSet=~CAP_KILL"}
NETWORK = {"PrivateNetwork=", "RestrictAddressFamilies=~AF_(INET|INET6)", "IPAddressDeny="}
OVERRIDE = {"CapabilityBoundingSet=~CAP_(DAC_*|FOWNER|IPC_OWNER)"}


def write(directory: Path, named: tuple[str, ...]) -> Path:
    """Write the unit with these drop-ins for a program that exists; return the path of the unit."""
    for name, text in files(quoted(sys.executable), named).items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return directory / UNIT


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [program("systemd-analyze"), "--no-pager", *arguments]
    return finish(command)


@pytest.mark.parametrize(
    "named", [(), *((name,) for name in drop_ins()), drop_ins()], ids=lambda named: "+".join(named)
)
def test_systemd_finds_no_fault_with_the_unit(named: tuple[str, ...], tmp_path: Path) -> None:
    done = analyze("verify", "--recursive-errors=yes", "--man=no", str(write(tmp_path, named)))
    assert (done.returncode, about(done.stderr)) == (0, [])


def about(text: str) -> list[str]:
    """Return the lines about our unit; other units of the machine may have faults of their own."""
    return [line for line in text.splitlines() if UNIT in line]


@pytest.mark.parametrize(
    ("named", "exposed", "most"),
    [
        ((), BASE, 0.9),
        (("device-plugins",), BASE, 0.9),
        (("devices",), BASE | {"PrivateDevices="}, 1.1),
        (("leases",), BASE | CHOWN | KILL, 1.3),
        (("metrics",), BASE | NETWORK, 1.6),
        (("other-users",), BASE | CHOWN | OVERRIDE, 1.4),
        (drop_ins(), BASE | CHOWN | KILL | NETWORK | OVERRIDE | {"PrivateDevices="}, 2.4),
    ],
    ids=["base", "device-plugins", "devices", "leases", "metrics", "other-users", "all"],
)
def test_the_unit_is_exposed_as_far_as_its_page_says(
    named: tuple[str, ...], exposed: set[str], most: float, tmp_path: Path
) -> None:
    """The base unit is far below 2.0, and that with all drop-ins below 3.1."""
    unit = write(tmp_path, named)
    done = analyze("security", "--offline=true", "--json=short", str(unit))
    found = {row["name"] for row in json.loads(done.stdout) if row["set"] is False and row["exposure"]}
    assert found == exposed, done.stderr
    over = analyze("security", "--offline=true", f"--threshold={round(most * 10)}", str(unit))
    assert over.returncode == 0, over.stdout.splitlines()[-1]
