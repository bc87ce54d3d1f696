"""``plugind allocate``, ``release``, ``renew`` and ``leases`` as a user runs them, against a server that answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from plugind.actors.console.commands import main
from plugind.actors.console.times import span
from plugind.protocol.leases.forms import NO_LEASE
from plugind.protocol.leases.leases_json import (
    failure_to_json,
    lease_to_json,
    place_to_json,
    released_to_json,
    snapshot_to_json,
)
from plugind.protocol.leases.replies import Failure, InLine, LeasesSnapshot, LimitMet, Problem, Released
from plugind.protocol.leases.values import (
    Answer,
    ContainerOwner,
    Lease,
    LeaseState,
    Mount,
    Node,
    NoOwner,
    ProcessIdentity,
    ProcessOwner,
    Request,
    TimeOwner,
    Wanted,
)
from plugind.tests.actors.console import snapshots
from plugind.tests.actors.console.lease_server import Asked, answer, lease_server

GPU = "vendor.com/gpu"
PROCESS = ProcessIdentity(991, 4711, "boot")
LEASE = Lease(
    "a1b2",
    os.getuid(),
    Request((Wanted(GPU, 1),)),
    ProcessOwner(PROCESS),
    LeaseState.HELD,
    1_700_000_000.0,
    {GPU: ("GPU-0",)},
    Answer({"GPUS": "0"}, nodes=(Node("/dev/null", "/dev/null"),)),
)
INSIDE = attrs.evolve(LEASE, answer=Answer(mounts=(Mount("/opt/lib", "/usr/lib/gpu"),)))
CONTAINED = attrs.evolve(LEASE, owner=ContainerOwner(), cdi_name="x77")
#: The variables of plugind's own, for Docker.
OURS = f"-e PLUGIND_LEASE=a1b2 -e PLUGIND_DEVICES={GPU}=GPU-0 -e PLUGIND_NODES=/dev/null"
NEEDS_CONTAINER = (
    "the answer for GPU-0 of vendor.com/gpu needs a container, in which /opt/lib is /usr/lib/gpu: use 'podman run' with"
    " -o podman, or -o cdi"
)
TOO_FEW = "requested number of devices unavailable for vendor.com/gpu. Requested: 2, Available: 1"


#: The head of a stream.
OK = b"HTTP/1.1 200 OK\r\nPlugind-Status-Version: 2\r\n\r\n"


def held(lease: Lease = LEASE) -> bytes:
    return answer(201, lease_to_json(lease))


def failed(problem: Problem, text: str = "no", *holders: Lease) -> bytes:
    return answer(409, failure_to_json(Failure(problem, text, holders)))


@attrs.frozen
class Done:
    code: int
    out: str
    err: str
    asked: Sequence[Asked]


Run = Callable[..., Done]


@pytest.fixture
def plugind(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process, against a daemon that answers so."""

    def run(answers: Sequence[bytes], *words: str) -> Done:
        (tmp_path / "status.sock").unlink(missing_ok=True)
        with lease_server(tmp_path, *answers) as server:
            monkeypatch.setenv("PLUGIND_STATUS", str(server.path))
            code = main(words)
            return Done(code, *capsys.readouterr(), server.requests)

    return run


def process(directory: Path, answers: Sequence[bytes], *words: str, **more: Any) -> Done:
    """Run a command in a process of its own, against a daemon that answers so."""
    with lease_server(directory, *answers) as server:
        environment = {**os.environ, "PLUGIND_STATUS": str(server.path)}
        command = [sys.executable, "-m", "plugind", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60, **more)
        return Done(done.returncode, done.stdout, done.stderr, server.requests)


# --- -- CMD -----------------------------------------------------------------------------------------------------------


def test_the_command_takes_the_place_of_plugind_with_the_lease_in_its_environment(tmp_path: Path) -> None:
    """Its pid is the one that was named as the owner. Options after ``--`` are its own, and SIGPIPE is as at first."""
    words = 'echo $$ $PLUGIND_LEASE $PLUGIND_DEVICES $PLUGIND_NODES $GPUS "$@"; grep SigIgn /proc/$$/status; exit 7'
    done = process(tmp_path, [held()], "allocate", f"{GPU}=1", "--", "sh", "-c", words, "sh", "-o", "json")
    (asked,) = done.asked
    assert asked.line == "POST /v1/leases HTTP/1.1"
    pid = asked.body["owner"]["pid"]
    assert (asked.body["owner"]["kind"], asked.body["client_pid"], asked.body["container"]) == ("process", pid, False)
    first, ignored = done.out.splitlines()
    assert first == f"{pid} a1b2 {GPU}=GPU-0 /dev/null 0 -o json"
    mask = int(ignored.split()[1], 16)
    assert not mask & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))
    assert (done.code, done.err) == (7, "")


@pytest.mark.parametrize(
    ("said", "command", "code", "why"),
    [
        (failed(Problem.UNAVAILABLE, TOO_FEW), ["true"], 125, TOO_FEW),
        (failed(Problem.USAGE), ["true"], 125, "no"),
        (failed(Problem.TIMEOUT), ["true"], 125, "no"),
        (b"", ["true"], 125, "it closed the connection before the end of the answer, as when it is killed: ask again"),
        (held(INSIDE), ["true"], 125, NEEDS_CONTAINER),
        (held(), ["no-such-command-here"], 127, "no-such-command-here: there is no such command"),
        (held(), ["./no/such"], 127, "./no/such: there is no such command"),
    ],
)
def test_why_the_command_was_not_run(plugind: Run, said: bytes, command: list[str], code: int, why: str) -> None:
    """No devices are taken for a command that is not there: it may wait for an hour before."""
    done = plugind([said], "allocate", f"{GPU}=1", "--", *command)
    allocations = [asked for asked in done.asked if asked.line.startswith("POST")]
    assert (done.code, done.out, len(allocations)) == (code, "", 0 if code == 127 else 1)
    assert why in done.err
    assert len(done.err.splitlines()) == 1


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    done = process(tmp_path, [held()], "allocate", f"{GPU}=1", "--", "/dev/null")
    assert (done.code, done.out, done.err) == (126, "", "plugind: /dev/null cannot be run: Permission denied\n")


def test_without_bubblewrap_no_devices_are_taken_for_a_confined_command(
    plugind: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = plugind([held()], "allocate", f"{GPU}=1", "--confine", "--", "/bin/true")
    why = "plugind: --confine needs bwrap, which is not there: apt install bubblewrap\n"
    assert (done.code, done.out, done.err, done.asked) == (125, "", why, [])


@pytest.mark.parametrize("user", ["root", "0"])
def test_a_lease_is_asked_for_another_user(plugind: Run, user: str) -> None:
    (asked,) = plugind([held()], "allocate", f"{GPU}=1", "--ttl", "5", "--for-user", user).asked
    assert asked.body["for_uid"] == 0


def test_a_device_node_that_the_user_cannot_open_is_a_warning(tmp_path: Path) -> None:
    lease = attrs.evolve(LEASE, answer=Answer(nodes=(Node("/no/such", "/no/such"),)), warnings=("its plugin is slow",))
    done = process(tmp_path, [held(lease)], "allocate", f"{GPU}=1", "--", "true")
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines() == [
        "plugind: warning: its plugin is slow",
        "plugind: warning: you cannot open /no/such (rw): No such file or directory",
    ]


# --- other owners, and what is printed --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        (["--owner", "991"], {"kind": "process", "pid": 991}),
        (["--ttl", "15m"], {"kind": "time", "seconds": 900.0}),
        (["--until-release"], {"kind": "none"}),
        (["-o", "cdi"], {"kind": "container"}),
        (["-o", "podman"], {"kind": "container"}),
        (["-o", "podman", "--start-within", "10m"], {"kind": "container", "start_within": 600.0}),
        (["-o", "podman", "--until-release"], {"kind": "container", "start_within": None}),
    ],
)
def test_who_is_to_have_the_devices(plugind: Run, words: list[str], owner: dict[str, Any]) -> None:
    done = plugind([held(CONTAINED)], "allocate", f"{GPU}=1", *words)
    (asked,) = done.asked
    assert (done.code, done.err) == (0, "")
    assert asked.body["owner"] == owner
    assert asked.body["container"] is (owner["kind"] == "container")


def test_all_that_can_be_asked_for(plugind: Run) -> None:
    words = ["--include", "GPU-1,GPU-0", "--id", "job-7", "--label", "job=7", "--label", "a=", "--pool", "p", "--wait"]
    words += ["1.5h", "--ignore-missing", "--stop-on-unhealthy", "--owner", "991"]
    done = plugind([held()], "allocate", f"{GPU}=2", "vendor.com/nic=1", *words)
    assert done.code == 0
    body = done.asked[0].body
    del body["client_pid"]
    assert body == {
        "resources": {GPU: 2, "vendor.com/nic": 1},
        "ids": [],
        "include": ["GPU-1", "GPU-0"],
        "id": "job-7",
        "labels": {"a": "", "job": "7"},
        "pool": "p",
        "wait": 5400.0,
        "ignore_missing": True,
        "stop_on_unhealthy": True,
        "container": False,
        "owner": {"kind": "process", "pid": 991},
    }


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        (
            "text",
            [
                "lease       a1b2",
                "devices     vendor.com/gpu: GPU-0",
                "node        /dev/null (rw)",
                "variable    GPUS=0",
            ],
        ),
        ("env", ['GPUS="0"', 'PLUGIND_LEASE="a1b2"', f'PLUGIND_DEVICES="{GPU}=GPU-0"', 'PLUGIND_NODES="/dev/null"']),
        ("docker", [f"--device /dev/null:/dev/null:rw -e GPUS=0 {OURS}"]),
    ],
)
def test_what_is_printed(plugind: Run, form: str, lines: list[str]) -> None:
    done = plugind([held()], "allocate", f"{GPU}=1", "--until-release", "-o", form)
    assert (done.code, done.err, done.out.splitlines()) == (0, "", lines)


@pytest.mark.parametrize("form", ["cdi", "podman", "docker"])
def test_an_engine_without_a_lease_is_told_of_a_device_that_is_not_there(plugind: Run, form: str) -> None:
    """``podman run $(plugind allocate ...)`` must not start a container without devices."""
    owner = ["--ttl", "5"] if form == "docker" else []
    done = plugind([failed(Problem.UNAVAILABLE, TOO_FEW)], "allocate", f"{GPU}=2", "-o", form, *owner)
    assert (done.code, done.out) == (1, NO_LEASE[form])


@pytest.mark.parametrize(
    "words",
    [
        ["vendor.com/gpu", "-o", "podman"],
        [f"{GPU}=1", "-opodman", "--no-such-option"],
        [f"{GPU}=1", "--output=podman", "--wait"],
        [f"{GPU}=1", "--out", "podman", "--owner", "no pid"],
        [f"{GPU}=1", "-o", "json", "-o", "podman", "--ttl", "5s"],
        [f"{GPU}=1", "-o", "podman", "--", "true"],
        [f"{GPU}=1", "-o", "podman", "--no-such-option", "--", "true"],
    ],
)
def test_an_engine_is_told_so_too_if_the_command_line_is_wrong(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["allocate", *words])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (125 if "--" in words else 2, NO_LEASE["podman"])
    assert said.err


@pytest.mark.parametrize("words", [[], ["--", "-o", "podman"], ["-o", "pod"], ["--owner", "podman"], ["-o"]])
def test_a_wrong_command_line_without_such_a_form_prints_nothing(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["allocate", f"{GPU}=0", *words])
    assert capsys.readouterr().out == ""


def test_an_engine_is_told_so_too_if_a_form_cannot_say_the_lease(plugind: Run) -> None:
    named = attrs.evolve(LEASE, answer=Answer(cdi_devices=("vendor.com/gpu=0",)))
    released = answer(200, released_to_json(Released(("a1b2",))))
    done = plugind([held(named), released], "allocate", f"{GPU}=1", "-o", "docker", "--ttl", "5")
    assert (done.code, done.out) == (1, NO_LEASE["docker"])


def test_the_options_of_podman_name_the_lease(plugind: Run) -> None:
    done = plugind([held(CONTAINED)], "allocate", f"{GPU}=1", "-o", "podman")
    assert (done.code, done.out) == (0, "--device plugind/lease=x77\n")


@pytest.mark.parametrize(("words", "kept"), [([], "released"), (["--id", "a1b2"], "kept")])
def test_a_lease_that_cannot_be_printed_is_released_unless_it_was_named(
    plugind: Run, words: list[str], kept: str
) -> None:
    said = [held(INSIDE), answer(200, released_to_json(Released(("a1b2",))))]
    done = plugind(said, "allocate", f"{GPU}=1", "--until-release", "-o", "env", *words)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"plugind: {NEEDS_CONTAINER}; the lease a1b2 was {kept}\n"
    assert [request.line for request in done.asked[1:]] == (
        ["DELETE /v1/leases/a1b2 HTTP/1.1"] if kept == "released" else []
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_lease_that_nobody_can_read_of_is_released(unbuffered: str, tmp_path: Path) -> None:
    said = [held(), answer(200, released_to_json(Released(("a1b2",))))]
    with lease_server(tmp_path, *said) as server, open("/dev/full", "wb") as full:
        environment = {**os.environ, "PLUGIND_STATUS": str(server.path), "PYTHONUNBUFFERED": unbuffered}
        command = [sys.executable, "-m", "plugind", "allocate", f"{GPU}=1", "--ttl", "60"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    assert done.returncode == 1
    why = "standard output cannot be written: No space left on device"
    assert done.stderr == f"plugind: {why}; the lease a1b2 was released\n"
    assert server.requests[1].line == "DELETE /v1/leases/a1b2 HTTP/1.1"


# --- usage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86400), ("0", 0)]
)
def test_a_time(text: str, seconds: float) -> None:
    assert span(text) == seconds


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (Problem.UNAVAILABLE, 1),
        (Problem.USAGE, 2),
        (Problem.REFUSED, 4),
        (Problem.TIMEOUT, 124),
        (Problem.FORBIDDEN, 1),
        (Problem.STORAGE, 1),
        (Problem.LIMIT, 1),
    ],
)
def test_the_exit_code_without_a_command(plugind: Run, problem: Problem, code: int) -> None:
    done = plugind([failed(problem, "why\nnot")], "allocate", f"{GPU}=1", "--ttl", "60")
    assert (done.code, done.out, done.err) == (code, "", "plugind: why\\nnot\n")


@pytest.mark.parametrize(
    "words", [["allocate", f"{GPU}=1", "--ttl", "60"], ["release", "a", "b"], ["renew", "a"], ["leases"]]
)
def test_without_a_daemon_the_exit_code_is_69(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--status", "/nowhere/status.sock"]) == 69
    assert capsys.readouterr().err == (
        "plugind: no daemon answers at /nowhere/status.sock (No such file or directory);"
        " start one with 'plugind run', or name its socket with --status or PLUGIND_STATUS\n"
    )


def stream(*lines: object) -> bytes:
    """Return an answer that comes later: its last line."""
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    head = b"HTTP/1.1 202 Accepted\r\nPlugind-Status-Version: 2\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


#: The last line of those in line when plugind stops.
STOPS = {"error": "plugind is about to stop: ask again"}
IN_LINE = place_to_json(InLine(1, Failure(Problem.UNAVAILABLE, TOO_FEW, (LEASE,))))
#: The answer of a daemon that is killed.
CUT_OFF = stream(IN_LINE, LEASE.id)[:-3]


def test_a_request_that_waits_is_asked_again_of_the_next_daemon_with_its_name_and_the_rest_of_its_time(
    tmp_path: Path,
) -> None:
    """A lease with a name is given once, so that it does not matter whether a killed daemon has given it."""
    words = ("allocate", f"{GPU}=1", "--wait", "60", "--", "true")
    done = process(tmp_path, [stream(IN_LINE, STOPS), CUT_OFF, answer(503, STOPS), held()], *words)
    first, *others = (asked.body for asked in done.asked)
    assert (done.code, len(others)) == (0, 3)
    assert {other["id"] for other in others} == {first["id"]}
    waits = [asked["wait"] for asked in (first, *others)]
    assert waits == sorted(waits, reverse=True)
    assert 50 < waits[-1] < 59.5
    assert done.err.count("waiting for the daemon at") == 1


def test_a_request_without_a_name_that_a_killed_daemon_may_have_served_is_not_asked_again(plugind: Run) -> None:
    done = plugind([CUT_OFF, held()], "allocate", f"{GPU}=1", "--ttl", "9", "--wait", "60")
    assert (done.code, len(done.asked)) == (69, 1)


def test_a_request_that_does_not_wait_is_asked_once(plugind: Run) -> None:
    done = plugind([answer(503, STOPS), held()], "allocate", f"{GPU}=1", "--ttl", "9")
    assert (done.code, len(done.asked)) == (1, 1)


@pytest.mark.parametrize(("wait", "told"), [((), 0), (("--wait", "0.5"), 1)])
def test_a_request_waits_for_a_daemon_that_does_not_run_yet_only_if_it_waits(
    wait: Sequence[str], told: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = str(tmp_path / "status.sock")
    assert main(["allocate", f"{GPU}=1", "--ttl", "9", "--status", status, *wait]) == 69
    said = capsys.readouterr().err
    assert (said.count(f"waiting for the daemon at {status}"), said.count("no daemon answers")) == (told, 1)


@pytest.mark.usefixtures("in_berlin")
def test_what_a_command_says_that_waits(plugind: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its place, for what, and who is before it, and again when that changes."""
    monkeypatch.setattr(time, "time", lambda: LEASE.created + 125.0)
    queued = attrs.evolve(LEASE, id="q1", devices={}, answer=None, state=LeaseState.QUEUED)
    odd = attrs.evolve(LEASE, id="my lease", owner=NoOwner(), uid=0)
    uncertain = attrs.evolve(LEASE, id="u2", state=LeaseState.UNCERTAIN, withheld_until=LEASE.created + 180.0, uid=0)
    line = [
        place_to_json(InLine(number, Failure(Problem.UNAVAILABLE, TOO_FEW, holders)))
        for number, holders in ((2, (attrs.evolve(queued, uid=0), odd)), (1, (odd, uncertain)))
    ]
    limit = LimitMet("devices_per_user", 1, GPU, None, "/etc/plugind/plugind.toml:3")
    text = f"it waits for a lease of its user to end: user 1000 has 1 of {GPU} and may have 1 at once ({limit.words})"
    overdue = attrs.evolve(LEASE, longest_until=1, overdue=True)
    held_back = place_to_json(InLine(1, Failure(Problem.LIMIT, text, (overdue,), limit)))
    unknown = place_to_json(InLine(1, Failure(Problem.UNAVAILABLE, "cannot allocate unregistered device v.com/x")))
    late = failure_to_json(Failure(Problem.TIMEOUT, TOO_FEW, (odd,)))
    root = {"root": "/dp", "watching": "unavailable", "reason": "/dp is missing"}
    health = answer(503, {"status": "degraded", "roots": [root], "actors": []})
    words = ["allocate", f"{GPU}=2", "--ttl", "9", "--wait", "60"]
    cases = {
        "it gets the lease": [stream(*line, lease_to_json(LEASE))],
        "it waits too long": [stream(*line[:1], late)],
        "a limit holds it back": [stream(held_back, lease_to_json(LEASE))],
        "nobody has offered it": [stream(unknown, late), answer(200, []), health],
        "plugind stops, and starts again": [stream(*line[:1], STOPS), stream(lease_to_json(LEASE))],
        "an older daemon": [answer(400, {"error": "there is no parameter progress"}), held()],
    }
    done = {title: plugind(answers, *words) for title, answers in cases.items()}
    assert [each.code for each in done.values()] == [0, 124, 0, 124, 0, 0]
    assert [asked.line.split()[1] for asked in done["an older daemon"].asked] == ["/v1/leases?progress", "/v1/leases"]
    snapshots.check("allocate-wait", {title: each.err.replace(str(tmp_path), "/run") for title, each in done.items()})


def test_a_limit_that_refuses_is_in_the_json(plugind: Run) -> None:
    limit = LimitMet("longest_lease", 60.0, GPU, "lab", "/etc/plugind/plugind.toml:3")
    refused = answer(409, failure_to_json(Failure(Problem.LIMIT, "too long", limit=limit)))
    done = plugind([refused], "allocate", f"{GPU}=2", "--ttl", "90", "-o", "json")
    assert done.code == 1
    assert json.loads(done.out)["limit"] == {
        "name": "longest_lease",
        "value": 60.0,
        "resource": GPU,
        "pool": "lab",
        "source": "/etc/plugind/plugind.toml:3",
    }


def test_those_who_hold_the_others_are_named(plugind: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who, for how long, and until when."""
    monkeypatch.setattr(time, "time", lambda: LEASE.created + 125.0)
    many = attrs.evolve(LEASE, id="c3", devices={GPU: ("GPU-1",), "vendor.com/nic": ("n\x1b0",)}, owner=NoOwner())
    timed = attrs.evolve(LEASE, id="d4", owner=TimeOwner(60.0))
    done = plugind([failed(Problem.UNAVAILABLE, TOO_FEW, LEASE, many, timed)], "allocate", f"{GPU}=2", "--ttl", "9")
    first, *holders = done.err.splitlines()
    assert first == f"plugind: {TOO_FEW}"
    user = "root" if os.getuid() == 0 else subprocess.check_output(["id", "-un"], text=True).strip()
    assert holders == [
        f"  GPU-0: a1b2, pid 991 of {user}, for 2m05s, until the process ends",
        f"  vendor.com/gpu=GPU-1, vendor.com/nic=n\\x1b0: c3, {user}, for 2m05s, until it is released: plugind release"
        " c3",
        f"  GPU-0: d4, {user}, for 2m05s, for another 1m00s",
    ]


# --- release, renew, leases -------------------------------------------------------------------------------------------


def test_each_lease_is_released_and_one_that_is_not_there_is_an_error(plugind: Run) -> None:
    gone = answer(404, failure_to_json(Failure(Problem.UNKNOWN, "there is no lease b/2")))
    ended = answer(200, released_to_json(Released(("a",))))
    done = plugind([gone, ended], "release", "b/2", "a")
    assert (done.code, done.out, done.err) == (1, "", "plugind: there is no lease b/2\n")
    assert [request.line for request in done.asked] == [
        "DELETE /v1/leases/b%2F2 HTTP/1.1",
        "DELETE /v1/leases/a HTTP/1.1",
    ]


def test_with_if_exists_one_that_is_not_there_is_no_error(plugind: Run) -> None:
    gone = answer(404, failure_to_json(Failure(Problem.UNKNOWN, "there is no lease b")))
    forbidden = answer(403, failure_to_json(Failure(Problem.FORBIDDEN, "lease c belongs to another user")))
    done = plugind([gone, forbidden], "release", "--if-exists", "b", "c")
    assert (done.code, done.err) == (1, "plugind: lease c belongs to another user\n")


def test_a_lease_is_renewed(plugind: Run) -> None:
    said = [answer(200, lease_to_json(attrs.evolve(LEASE, owner=TimeOwner(60.0, 1))))]
    done = plugind(said, "renew", "a1b2")
    assert (done.code, done.out, done.err) == (0, "a1b2 ends in 60 s\n", "")
    assert done.asked[0].line == "POST /v1/leases/a1b2/renew HTTP/1.1"


def test_the_leases_are_listed(plugind: Run) -> None:
    queued = attrs.evolve(LEASE, id="q", state=LeaseState.QUEUED, devices={}, owner=TimeOwner(60.0), answer=None)
    uncertain = attrs.evolve(LEASE, id="u", state=LeaseState.UNCERTAIN, reason="Allocate timed out", owner=NoOwner())
    found = LeasesSnapshot(0.0, (LEASE, queued, uncertain), problem="disk full")
    done = plugind([answer(200, snapshot_to_json(found, 0.0))], "leases", "--prefix", "a b")
    assert (done.code, done.err) == (0, "")
    header, *rows = done.out.splitlines()
    assert header.split() == ["LEASE", "STATE", "OWNER", "USER", "SINCE", "UNTIL", "DEVICES", "REASON"]
    assert [row.split()[:2] for row in rows[:3]] == [["a1b2", "held"], ["u", "uncertain"], ["q", "queued"]]
    assert rows[0].endswith("it ends     vendor.com/gpu=GPU-0  -")
    assert rows[1].endswith("released    vendor.com/gpu=GPU-0  Allocate timed out")
    assert rows[2].endswith("1m00s long  1 of vendor.com/gpu   -")
    assert rows[3:] == ["3 leases: 1 queued, 1 held, 1 uncertain", "leases cannot be written now: disk full"]
    assert done.asked[0].line == "GET /v1/leases?prefix=a%20b HTTP/1.1"


def test_leases_are_followed_until_the_daemon_stops(plugind: Run, tmp_path: Path) -> None:
    waits = attrs.evolve(LEASE, id="b2", state=LeaseState.QUEUED, devices={})
    gone = attrs.evolve(LEASE, state=LeaseState.GONE, reason="it was released")
    said = b"".join(
        json.dumps({"time": "x", **lease_to_json(lease)}).encode() + b"\n" for lease in (LEASE, waits, gone)
    )
    done = plugind([OK + said + b"\n"], "leases", "--watch")
    assert done.asked[0].line == "GET /v1/leases/watch?heartbeat=1.25 HTTP/1.1"
    assert [line.split() for line in done.out.splitlines()] == [
        ["--:--:--", "held", "a1b2", "pid", "991", "root", f"{GPU}=GPU-0"],
        ["--:--:--", "queued", "b2", "pid", "991", "root", "1", "of", GPU],
        ["--:--:--", "gone", "a1b2", "pid", "991", "root", f"{GPU}=GPU-0", "it", "was", "released"],
    ]
    assert (done.code, done.err) == (69, f"plugind: the daemon at {tmp_path}/status.sock stopped\n")


def test_when_a_lease_for_some_time_ends_cannot_be_read_as_a_time_of_day(
    plugind: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight hours were shown as 08:00:00."""
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: 1_000 * 10**9)
    timed = attrs.evolve(LEASE, owner=TimeOwner(28_800.0, (1_000 + 28_680) * 10**9))
    over = attrs.evolve(LEASE, id="over", owner=TimeOwner(60.0, 999 * 10**9))
    found = LeasesSnapshot(0.0, (timed, over))
    lines = plugind([answer(200, snapshot_to_json(found, 0.0, 1_000 * 10**9))], "leases").out.splitlines()
    untils = [line[lines[0].index("UNTIL") : lines[0].index("DEVICES")].strip() for line in lines[1:3]]
    assert untils == ["in 7h58m", "in 0s"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_daemon_that_is_killed_ends_the_watch_with_an_error(plugind: Run, tmp_path: Path, form: list[str]) -> None:
    head = b"HTTP/1.1 200 OK\r\nPlugind-Status-Version: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    done = plugind([head + b"1\r\n\n\r\n"], "leases", "--watch", *form)
    assert (done.code, done.out) == (69, "")
    assert done.err.startswith(f"plugind: the daemon at {tmp_path}/status.sock went away: ")


def test_recover_names_the_processes_whose_leases_are_not_listed(plugind: Run) -> None:
    """Only as a hint, and after the recovery."""
    listed = answer(200, snapshot_to_json(LeasesSnapshot(0.0, (LEASE,)), 0.0, 0))
    with ExitStack() as stack:
        lost, held = (stack.enter_context(sleeping(PLUGIND_LEASE=name)) for name in ("lo\udcffst\n", LEASE.id))
        done = plugind([answer(200, {"recovered": True}), listed], "leases", "recover", "--none-held", "-o", "json")
    assert [request.line.split()[:2] for request in done.asked] == [
        ["POST", "/v1/leases/recover"],
        ["GET", "/v1/leases"],
    ]
    named = [found for found in json.loads(done.out)["processes"] if found["pid"] in (lost.pid, held.pid)]
    assert named == [{"pid": lost.pid, "lease": "lo\\xffst\n"}]
    hint = (
        f"plugind: hint: process {lost.pid} may use devices: its environment, which anybody can forge, names the lease"
        " lo\\xffst\\n, which plugind does not know\n"
    )
    assert hint in done.err
    assert f"process {held.pid} " not in done.err


@pytest.mark.parametrize(("withheld", "code"), [(None, 0), ("the state was lost", 1)])
def test_recover_alone_frees_nothing_and_names_the_processes(plugind: Run, withheld: str | None, code: int) -> None:
    listed = answer(200, snapshot_to_json(LeasesSnapshot(0.0, (LEASE,), withheld=withheld), 0.0, 0))
    with sleeping(PLUGIND_LEASE="lost") as lost:
        done = plugind([listed, listed], "leases", "recover", "-o", "json")
    assert {tuple(request.line.split()[:2]) for request in done.asked} == {("GET", "/v1/leases")}
    said = json.loads(done.out)
    assert (done.code, said["recovered"], said["withheld"]) == (code, False, withheld)
    assert ({"pid": lost.pid, "lease": "lost"} in said["processes"]) is (withheld is not None)
    if withheld is None:
        assert done.err == "plugind: no device is withheld: there is nothing to recover\n"
    else:
        assert done.err.startswith(
            "plugind: all devices are withheld: the state was lost\n"
            "plugind: nothing was changed: if none of them is in use, --none-held frees them\n"
        )
        assert f"plugind: hint: process {lost.pid} may use devices: " in done.err


@contextmanager
def sleeping(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process with these variables."""
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **variables}) as made:
        try:
            yield made
        finally:
            made.kill()


# --- how fast it starts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["allocate", "lease-hook"])
def test_what_stands_before_a_command_or_container_loads_little(command: str) -> None:
    code = (
        # From CPython 3.13 on, pathlib loads pwd.
        "import sys, pathlib; there = {*sys.modules};"
        f"from plugind.actors.console.commands import main, command; command('{command}');"
        "heavy = {'trio', 'rich', 'email', 'http', 'ssl', 'sqlite3', 'asyncio', 'subprocess', 'logging', 'pwd',"
        " 'google', 'grpclib', 'prometheus_client', 'plugind.supervisor', 'plugind.protocol.messages',"
        " 'plugind.protocol.leases.messages', 'plugind.protocol.plugins.info', 'plugind.actors.client.sync'};"
        "print(*sorted(heavy & {*sys.modules} - there))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
