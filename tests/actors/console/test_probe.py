"""``plugind probe`` against fake plugins on real sockets."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from plugind.actors.console.beside import Other
from plugind.actors.console.fake import FakeSpec, run_fake
from plugind.actors.console.findings import Fate, ProbeOptions, ProbeResult, ProbeStep, Verdict
from plugind.actors.console.probing import probe
from plugind.actors.grpc.client import dial as grpc_dial
from plugind.actors.grpc.server.serve import serve_listener
from plugind.actors.handlers.csi.handler import CSIHandler
from plugind.actors.handlers.handler import Handler
from plugind.actors.io.unix_socket import Credentials, listen
from plugind.actors.node.handlers import built_in_handlers
from plugind.actors.simulation.device_plugins import FakeDevices
from plugind.actors.trust.users import users_of
from plugind.protocol.errors import PluginError
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.protocol.settings.config import Root
from plugind.protocol.trust.directories import Access, insecurity, root_insecurity, root_insecurity_above
from plugind.protocol.trust.users import Trust, user_words
from plugind.testing import AllocationCall, Call, CSICall, Device, FakeCSIDriver, FakePlugin

DEADLINE = 60.0
GOOD = FakePlugin("CSIPlugin", "csi.example.com")


@asynccontextmanager
async def fake(path: Path, plugin: FakePlugin, *, accepts: bool = True) -> AsyncIterator[list[Call]]:
    """Run a fake plugin at ``path``; the value is the list of its calls."""
    calls: list[Call] = []
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_fake, FakeSpec(str(path), plugin, accepts=accepts), on_call=calls.append))
            yield calls
            nursery.cancel_scope.cancel()


async def probed(
    path: Path | str,
    *,
    timeout: float = 5.0,
    notify: bool = False,
    exercise: bool = False,
    strict: bool = False,
    deprecated: bool = False,
    handlers: dict[str, Handler] | None = None,
    others: Sequence[Plugin] | None = None,
    others_uid: int | None = os.geteuid(),
    trust: Trust | None = None,
    roots: Sequence[Path] = (),
    insecure: bool = False,
) -> ProbeResult:
    trust = trust or Trust()
    options = ProbeOptions(
        timeout,
        notify=notify,
        exercise=exercise,
        strict=strict,
        deprecated=deprecated,
        trust=trust,
        users=users_of(trust),
        roots=tuple(Root(root, insecure=insecure) for root in roots),
        insecure=insecure,
        endpoint_directories=("/nowhere", *map(str, roots)),
    )
    beside = None if others is None else [Other(other, others_uid) for other in others]
    return await probe(str(path), built_in_handlers() | (handlers or {}), options, lambda _: None, beside)


def verdicts(steps: Iterable[ProbeStep]) -> list[tuple[str, Verdict]]:
    return [(step.step, step.verdict) for step in steps]


OK, WARNING, WRONG = Verdict.OK, Verdict.WARNING, Verdict.WRONG
SAID = [("path", OK), ("connect", OK), ("GetInfo", OK), ("info", OK)]


ASKED = ["GetPluginInfo", "GetPluginCapabilities", "NodeGetCapabilities", "NodeGetInfo"]
PASSED = [*SAID, ("validation", OK), ("endpoint", OK), *((call, OK) for call in ASKED)]
NOTIFY = "NotifyRegistrationStatus"


async def test_a_good_plugin_passes_every_step_and_is_not_notified(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    async with fake(path, GOOD) as calls:
        result = await probed(path)
    steps = result.steps
    assert verdicts(steps) == [*PASSED, (NOTIFY, OK)]
    assert (result.fate, result.well) == (Fate.REGISTERED, True)
    assert [call.method for call in calls] == ["GetInfo"]
    assert steps[1].detail == f"accepted, process {os.getpid()} of user {os.geteuid()} listens"
    assert all(step.seconds is not None for step in steps[1:3])


NOT_UNDERSTOOD = GRPCError(Status.UNIMPLEMENTED, "Method not found!")


async def test_with_notify_a_plugin_that_cannot_be_notified_is_found(tmp_path: Path) -> None:
    """Fault 71: many generated servers have every method, and answer UNIMPLEMENTED to those that are missing."""
    path = tmp_path / "a.sock"
    async with fake(path, attrs.evolve(GOOD, reject_notify=True, error=NOT_UNDERSTOOD)):
        result = await probed(path, notify=True)
    assert verdicts(result.steps)[-1] == (NOTIFY, WRONG)
    assert (result.fate, result.well) == (Fate.DEREGISTERED, False)


async def test_with_notify_a_plugin_that_hangs_is_shown_in_the_words_of_a_daemon(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Fault 32. The clock runs fast while the plugin hangs."""
    path = tmp_path / "a.sock"
    mock_clock.rate = 1.0

    def hurry(step: ProbeStep) -> None:
        mock_clock.rate = 10.0 if step.step == "endpoint" else mock_clock.rate

    async with fake(path, attrs.evolve(GOOD, hang="notify")):
        result = await probe(str(path), built_in_handlers(), ProbeOptions(notify=True), hurry)
        mock_clock.rate = 1.0
        hasty = await probed(path, notify=True, timeout=0.5)
    last = result.steps[-1]
    assert (last.step, last.verdict, last.detail) == (NOTIFY, WRONG, "no answer in 5 s")
    assert result.fate is Fate.DEREGISTERED
    assert re.fullmatch(r"no answer in \d+\.\d+ s; a daemon waits no longer than 5 s", hasty.steps[-1].detail)


@pytest.mark.parametrize(
    ("plugin", "expected", "words", "fate"),
    [
        (attrs.evolve(GOOD, versions=("0.3.0",)), ("validation", WRONG), "must be v1.x", Fate.FAILED),
        (
            FakePlugin("DevicePlugin", "example.com/gpu", ("v1beta1",), serves=()),
            ("GetDevicePluginOptions", WRONG),
            "UNIMPLEMENTED",
            Fate.FAILED,
        ),
        (
            FakePlugin("DevicePlugin", "example.com/gpu", ("v1beta1",)),
            ("GetDevicePluginOptions", OK),
            "answered",
            Fate.REGISTERED,
        ),
        (
            FakePlugin("DevicePlugin", "example.com/gpu", ("v1beta1",), "/nowhere/x.sock"),
            ("endpoint", WRONG),
            "No such file",
            Fate.FAILED,
        ),
        (attrs.evolve(GOOD, type="Odd"), ("type", WRONG), "CSIPlugin, DRAPlugin, DevicePlugin", Fate.NO_HANDLER),
        (attrs.evolve(GOOD, type="csi-driver"), ("type", WRONG), "did you mean CSIPlugin?", Fate.NO_HANDLER),
        (attrs.evolve(GOOD, endpoint="tcp://1.2.3.4:5"), ("info", WRONG), "not an absolute path", Fate.FAILED),
        (attrs.evolve(GOOD, endpoint="/nowhere/x.sock"), ("endpoint", WRONG), "No such file", Fate.FAILED),
        (attrs.evolve(GOOD, get_info_fails=9), ("GetInfo", WRONG), "UNAVAILABLE", Fate.FAILED),
        (
            attrs.evolve(GOOD, get_info_fails=9, error=NOT_UNDERSTOOD),
            ("GetInfo", WRONG),
            "does not serve pluginregistration.Registration",
            Fate.PARKED,
        ),
        (
            attrs.evolve(GOOD, delay=1.2),
            ("GetInfo", WRONG),
            " s; a daemon waits no longer than 1 s once it is read",
            Fate.FAILED,
        ),
    ],
)
async def test_each_rule_that_is_broken_is_named_with_what_becomes_of_the_plugin(
    plugin: FakePlugin, expected: tuple[str, Verdict], words: str, fate: Fate, tmp_path: Path
) -> None:
    """TestValidatePlugin; faults 42 to 44, 71 and 73; behaviours 28, 29 and 44: the verdicts are those of the node."""
    path = tmp_path / "a.sock"
    async with fake(path, plugin):
        result = await probed(path)
    found = [step for step in result.steps if (step.step, step.verdict) == expected]
    assert [words in step.detail for step in found] == [True], result.steps
    assert (result.fate, result.well) == (fate, expected[1] is OK)


EXERCISED = ["ListAndWatch", "health", "options", "Allocate", "serving"]


async def test_with_exercise_a_device_plugin_is_called_whichever_way_it_registers(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """The clock runs fast, since the probe looks seconds later whether the plugin still serves."""
    mock_clock.rate = 5.0
    devices = FakeDevices([Device("gpu-0")])
    plugin = FakePlugin("DevicePlugin", "example.com/gpu", ("v1beta1",), serves=[devices])
    async with fake(tmp_path / "a.sock", plugin) as calls:
        registered = await probed(tmp_path / "a.sock", notify=True, exercise=True)
    assert [step.step for step in registered.steps][-6:] == [NOTIFY, *EXERCISED]
    assert (registered.fate, registered.well) == (Fate.REGISTERED, True)
    assert (AllocationCall.ALLOCATE, ("gpu-0",)) in devices.allocations
    assert [call.registered for call in calls if call.method == NOTIFY] == [True]
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_listener, [devices], listen(str(tmp_path / "b.sock")))
            by_call = await probed(tmp_path / "b.sock", exercise=True)
            nursery.cancel_scope.cancel()
    assert [step.step for step in by_call.steps][-6:] == ["GetDevicePluginOptions", *EXERCISED]
    assert (by_call.fate, by_call.well) == (Fate.BY_CALL, True)


async def test_with_exercise_a_plugin_of_another_type_is_only_notified(tmp_path: Path) -> None:
    async with fake(tmp_path / "a.sock", GOOD):
        result = await probed(tmp_path / "a.sock", notify=True, exercise=True)
    assert verdicts(result.steps)[-2:] == [(NOTIFY, OK), ("exercise", WARNING)]
    assert result.well


async def test_a_device_plugin_that_registers_by_a_call_needs_no_get_info(tmp_path: Path) -> None:
    """Nearly all device plugins do: they serve nothing but ``v1beta1.DevicePlugin``."""
    path = tmp_path / "gpu.sock"
    devices = FakeDevices()
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_listener, [devices], listen(str(path)))
            result = await probed(path)
            strict = await probed(path, strict=True)
            devices.options_error = NOT_UNDERSTOOD
            other = await probed(path)
            nursery.cancel_scope.cancel()
    for found in (result, strict):
        assert (found.fate, found.well) == (Fate.BY_CALL, True)
        assert verdicts(found.steps)[-2:] == [("GetInfo", OK), ("GetDevicePluginOptions", OK)]
        assert "registers by a call on kubelet.sock" in found.steps[-1].detail
    assert (other.fate, other.well) == (Fate.PARKED, False)


class OddHandler:
    """A user's handler that accepts no plugin."""

    follow = None

    async def validate(self, plugin: Plugin) -> None:
        raise PluginError(f"{plugin.name} is not odd enough")

    async def register(self, plugin: Plugin) -> None:
        raise AssertionError("a probe registers nothing")

    deregister = register


async def test_the_handler_of_an_installed_package_is_asked(tmp_path: Path) -> None:
    """Behaviour 41: the verdict is that of the handler that the daemon has."""
    path = tmp_path / "a.sock"
    async with fake(path, attrs.evolve(GOOD, type="Odd")):
        result = await probed(path, handlers={"Odd": OddHandler()})
    (step,) = [step for step in result.steps if step.step == "validation"]
    assert (step.verdict, step.detail, result.fate) == (WRONG, "csi.example.com is not odd enough", Fate.FAILED)


class OneOfAName(CSIHandler):
    """A handler that takes one plugin of a name."""

    instances = InstancePolicy.REJECT


OTHER = Plugin("CSIPlugin", "csi.example.com", "/run/csi.sock", ("1.0.0",), "/reg/other.sock", 7)


@pytest.mark.parametrize(
    ("handler", "other", "expected", "words"),
    [
        (CSIHandler(), OTHER, ("validation", WRONG), "already registered with a higher supported version"),
        (CSIHandler(), attrs.evolve(OTHER, name="other"), ("claim", OK), "no other plugin of the daemon has the name"),
        (CSIHandler(), attrs.evolve(OTHER, versions=("0.9",)), ("claim", OK), "is shared with /reg/other.sock"),
        (OneOfAName(), OTHER, ("claim", WRONG), "is registered already, by the socket /reg/other.sock"),
        (OneOfAName(), attrs.evolve(OTHER, type="DRAPlugin"), ("claim", OK), "no other plugin"),
    ],
    ids=["same-version", "other-name", "lower-version", "reject", "other-type"],
)
async def test_a_probe_beside_a_daemon_judges_beside_its_plugins(
    handler: Handler, other: Plugin, expected: tuple[str, Verdict], words: str, tmp_path: Path
) -> None:
    """Behaviour 37; TestValidatePluginExistingDriver."""
    path = tmp_path / "a.sock"
    async with fake(path, GOOD):
        result = await probed(path, handlers={"CSIPlugin": handler}, others=[other])
    (step,) = [step for step in result.steps if (step.step, step.verdict) == expected]
    assert words in step.detail
    assert result.fate is (Fate.REGISTERED if expected[1] is OK else Fate.FAILED)


#: A user who is neither root nor the one that runs the tests.
STRANGER = 4242


@pytest.fixture
def run_by_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel say that process 7 of user 4242 listens."""
    monkeypatch.setattr(grpc_dial, "peer_credentials", lambda _: Credentials(7, STRANGER, STRANGER))


@pytest.mark.usefixtures("run_by_a_stranger")
async def test_a_probe_judges_the_user_as_a_daemon_does(tmp_path: Path) -> None:
    """Fault 40: a plugin of a user who is not trusted would be parked, and it is asked nothing."""
    path = tmp_path / "a.sock"
    async with fake(path, GOOD) as calls:
        result = await probed(path)
        assert (calls, result.fate) == ([], Fate.PARKED)
        assert verdicts(result.steps)[1:] == [("connect", WRONG)]
        assert "process 7 of user 4242 listens there, which is not trusted: " in result.steps[1].detail
        assert (await probed(path, trust=Trust((STRANGER,)))).fate is Fate.REGISTERED
        assert (await probed(path, strict=True)).steps[1].verdict is OK, "the kubelet asks for no user"


@pytest.mark.usefixtures("run_by_a_stranger")
@pytest.mark.parametrize(("holder", "expected"), [(STRANGER, OK), (0, WRONG)])
async def test_a_probe_says_that_another_user_has_the_name(holder: int, expected: Verdict, tmp_path: Path) -> None:
    """Fault 80: the type's policy would allow it."""
    path, other = tmp_path / "a.sock", attrs.evolve(OTHER, versions=("0.9",))
    async with fake(path, GOOD):
        result = await probed(path, trust=Trust((STRANGER,)), others=[other], others_uid=holder)
        (step,) = [step for step in result.steps if step.step == "claim"]
        assert (step.verdict, result.fate) == (expected, Fate.REGISTERED if expected is OK else Fate.FAILED)
        assert ("belongs to user 0, by the socket /reg/other.sock" in step.detail) is (expected is WRONG)


# --- where the socket lies --------------------------------------------------------------------------------------------


def directory_steps(result: ProbeResult) -> list[tuple[Verdict, str]]:
    return [(step.verdict, step.detail) for step in result.steps if step.step == "directory"]


OPEN = Access(0o777, os.geteuid(), ours=True)


async def test_a_socket_in_a_directory_that_others_may_write_to_is_not_for_a_daemon(tmp_path: Path) -> None:
    """Fault 3: it was called fine, although a daemon never dials it. The words are those of the daemon."""
    above, root = tmp_path / "above", tmp_path / "above" / "root"
    path = root / "sub" / "a.sock"
    path.parent.mkdir(parents=True)
    async with fake(path, GOOD):
        assert directory_steps(await probed(path, roots=[root])) == []

        path.parent.chmod(0o777)
        below, alone = await probed(path, roots=[root]), await probed(path)
        assert directory_steps(below) == [
            (WRONG, f"directory {path.parent} is insecure: {insecurity(str(path.parent), OPEN)}")
        ]
        assert directory_steps(alone) == [
            (WRONG, f"directory {path.parent} is insecure: {root_insecurity(str(path.parent), OPEN)}")
        ]
        assert [(result.fate, result.well) for result in (below, alone)] == [(Fate.IGNORED, False)] * 2
        assert directory_steps(await probed(path, roots=[root], insecure=True)) == []
        assert directory_steps(await probed(path, insecure=True)) == []
        assert directory_steps(await probed(path, strict=True)) == [], "the kubelet judges no directory"

        path.parent.chmod(0o775)
        of_group = await probed(path, roots=[root])
        assert [verdict for verdict, _ in directory_steps(of_group)] == [WARNING]
        assert of_group.well

        path.parent.chmod(0o755)
        above.chmod(0o777)
        said = root_insecurity_above(str(root), str(above), OPEN)
        assert directory_steps(await probed(path, roots=[root])) == [(WRONG, f"directory {root} is insecure: {said}")]


async def test_a_socket_in_none_of_the_roots_or_beyond_a_link_is_not_for_a_daemon(tmp_path: Path) -> None:
    """Fault 13: directories that are links are not entered. A path to a root may lead through one."""
    root, other, link = tmp_path / "root", tmp_path / "other", tmp_path / "link"
    for directory in root / "real", other:
        directory.mkdir(parents=True)
    (root / "linked").symlink_to(root / "real")
    link.symlink_to(root)
    async with fake(root / "real/a.sock", GOOD):
        outside = await probed(root / "real/a.sock", roots=[other])
        (step,) = [step for step in outside.steps if step.step == "root"]
        assert (step.verdict, outside.fate) == (WRONG, Fate.IGNORED)
        assert step.detail == (
            f"{root}/real/a.sock is in no root of the daemon, {other}: move it there, or run plugind with --root"
            f" {root}/real"
        )
        ((verdict, detail),) = directory_steps(await probed(root / "linked/a.sock", roots=[root]))
        assert verdict is WRONG
        assert detail.startswith(f"directory {root}/linked is insecure: {root}/linked is a symbolic link, and")
        assert (await probed(link / "real/a.sock", roots=[root])).well


async def test_a_probe_beside_a_daemon_says_that_another_plugin_has_the_endpoint(tmp_path: Path) -> None:
    """Fault 79."""
    path, endpoint = tmp_path / "a.sock", tmp_path / "csi.sock"
    plugin = attrs.evolve(GOOD, endpoint=str(endpoint))
    theirs = attrs.evolve(OTHER, type="DRAPlugin", name="gpu.example.com", endpoint=str(endpoint))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(endpoint))
        async with fake(path, plugin):
            result = await probed(path, others=[theirs])
            succeeds = await probed(path, others=[theirs], others_uid=STRANGER)
            shared = await probed(
                path, others=[attrs.evolve(theirs, type="CSIPlugin", name=GOOD.name, versions=("0.9",))]
            )
    (step,) = [step for step in result.steps if step.step == "claim"]
    assert (step.verdict, result.fate) == (WRONG, Fate.FAILED)
    assert step.detail == (
        f"the endpoint {str(endpoint)!r} belongs to DRAPlugin 'gpu.example.com' of {user_words(os.geteuid())}, by the"
        f" socket {theirs.socket}: give this plugin an endpoint of its own"
    )
    assert [step.verdict for step in shared.steps if step.step == "claim"] == [OK], "instances may share it"
    assert not [step for step in succeeds.steps if step.step == "claim" and step.verdict is WRONG], "as with names"


async def test_the_first_thing_that_is_wrong_decides_and_the_rest_is_shown_too(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    plugin = attrs.evolve(GOOD, versions=("0.3.0",), endpoint="/nowhere/x.sock")
    async with fake(path, plugin):
        result = await probed(path)
    assert verdicts(result.steps) == [*SAID, ("validation", WRONG), ("endpoint", WRONG), (NOTIFY, OK)]
    assert result.fate is Fate.FAILED


@pytest.mark.parametrize(
    ("plugin", "expected", "fate"),
    [
        (attrs.evolve(GOOD, serves=()), ("NodeGetInfo", WRONG), Fate.FAILED),
        (
            FakePlugin("DevicePlugin", "example.com/gpu", ("v1beta1",), serves=()),
            ("GetDevicePluginOptions", WRONG),
            Fate.FAILED,
        ),
        (attrs.evolve(GOOD, endpoint="/nowhere/x.sock"), ("endpoint", WRONG), Fate.FAILED),
        (
            FakePlugin("DRAPlugin", "d.example.com", ("v1.DRAPlugin",), "/nowhere/x.sock"),
            ("endpoint", WRONG),
            Fate.UNUSABLE,
        ),
        (FakePlugin("DRAPlugin", "d.example.com", ("v1.DRAPlugin",)), ("endpoint", OK), Fate.REGISTERED),
        (FakePlugin("Odd", "odd"), ("type", WRONG), Fate.NO_HANDLER),
    ],
    ids=["csi", "device", "csi-dead-endpoint", "dra-dead-endpoint", "dra", "own-handler"],
)
async def test_strict_applies_the_rules_of_the_kubelet(
    plugin: FakePlugin, expected: tuple[str, Verdict], fate: Fate, tmp_path: Path
) -> None:
    """The kubelet calls CSI drivers and device plugins when it registers them; these fakes serve nothing else."""
    path = tmp_path / "a.sock"
    async with fake(path, plugin):
        result = await probed(path, strict=True, handlers={"Odd": CSIHandler()})
    assert expected in verdicts(result.steps)
    assert result.fate is fate


@pytest.mark.parametrize(("hang", "step"), [("accept", "GetInfo"), ("get-info", "GetInfo")])
async def test_a_plugin_that_hangs_is_abandoned_at_its_deadline(hang: str, step: str, tmp_path: Path) -> None:
    """Fault 32."""
    path = tmp_path / "a.sock"
    plugin = attrs.evolve(GOOD, hang="get-info" if hang == "get-info" else None)
    async with fake(path, plugin, accepts=hang != "accept"):
        result = await probed(path, timeout=0.2)
    assert verdicts(result.steps)[-1] == (step, WRONG)
    assert re.fullmatch(
        r"no answer in \d+\.\d s; a daemon waits no longer than 1 s once it is read", result.steps[-1].detail
    )
    assert result.fate is Fate.FAILED


async def test_anything_but_a_socket_is_reported_at_the_path_step(tmp_path: Path) -> None:
    """Faults 5, 6, 7 and 28."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "stale"))
    (tmp_path / "dangling").symlink_to("nowhere")
    no_link = "a symbolic link that leads to no socket"
    cases = {"none": "No such file", "file": "no socket", "link": no_link, "dangling": no_link, ".": "a directory"}
    for name, words in cases.items():
        result = await probed(f"{tmp_path}/{name}")
        (step,) = result.steps
        assert (step.step, step.verdict, result.fate) == ("path", WRONG, Fate.IGNORED)
        assert words in step.detail
    result = await probed(tmp_path / "stale", timeout=0.1)
    assert verdicts(result.steps)[-1] == ("connect", WRONG)
    assert "stale" in result.steps[-1].detail
    assert result.fate is Fate.STALE


async def test_a_dot_file_and_a_world_writable_socket_are_reported(tmp_path: Path) -> None:
    """Fault 5."""
    path = tmp_path / ".a.sock"
    async with fake(path, GOOD):
        path.chmod(0o777)
        result = await probed(path)
    assert verdicts(result.steps)[:2] == [("path", WRONG), ("permissions", WARNING)]
    assert result.fate is Fate.IGNORED


async def test_a_path_too_long_for_others_is_a_warning(tmp_path: Path) -> None:
    """Fault 23; Kubernetes issues 139166 and 141815."""
    short = tmp_path / "a.sock"
    async with fake(short, GOOD):
        deep = tmp_path / ("d" * 120)
        deep.mkdir()
        short.rename(deep / "a.sock")
        result = await probed(deep / "a.sock")
        strict = await probed(deep / "a.sock", strict=True)
    assert ("path length", WARNING) in verdicts(result.steps)
    assert ("GetInfo", OK) in verdicts(result.steps)
    assert ("path length", WRONG) in verdicts(strict.steps)
    assert (result.fate, strict.fate) == (Fate.REGISTERED, Fate.FAILED)


# --- servers that are no plugins --------------------------------------------------------------------------------------


@asynccontextmanager
async def server(path: Path, serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[None]:
    """Serve each connection to ``path`` with ``serve``, which may find the connection closed."""

    async def guarded(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                await serve(stream)

    with trio.fail_after(DEADLINE), trio.socket.socket(socket.AF_UNIX) as listener:
        await listener.bind(str(path))
        listener.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, guarded, [trio.SocketListener(listener)]))
            yield
            nursery.cancel_scope.cancel()


def answers(answer: bytes) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """Read the first bytes of the client, answer, and close."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        if answer:
            await stream.send_all(answer)

    return serve


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "the peer closed the connection without a byte, as servers do that expect TLS; "),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer answers in HTTP/1, not in HTTP/2 as gRPC does; "),
    ],
    ids=["close", "http"],
)
async def test_a_server_of_another_protocol_is_named(answer: bytes, words: str, tmp_path: Path) -> None:
    """Fault 66: the message also describes the gRPC that is expected here."""
    path = tmp_path / "a.sock"
    async with server(path, answers(answer)):
        result = await probed(path)
    last = result.steps[-1]
    assert (last.step, last.verdict, result.fate) == ("GetInfo", WRONG, Fate.FAILED)
    assert last.detail == f"UNAVAILABLE: {words}gRPC on a unix socket is plain HTTP/2, without TLS"


# --- CSI drivers ------------------------------------------------------------------------------------------------------


def csi_driver(**changed: object) -> FakePlugin:
    fake = FakeCSIDriver(GOOD.name, node_id="node-7")
    for name, value in changed.items():
        setattr(fake, name, value)
    return attrs.evolve(GOOD, serves=[fake])


@pytest.mark.parametrize(
    ("plugin", "expected", "detail", "fate"),
    [
        (csi_driver(), ("NodeGetInfo", OK), 'the driver calls this node "node-7"', Fate.REGISTERED),
        (
            csi_driver(name="other"),
            ("GetPluginInfo", WRONG),
            'calls itself "other", its registrar "csi.example.com"',
            Fate.FAILED,
        ),
        (
            csi_driver(errors={CSICall.NODE_CAPABILITIES: GRPCError(Status.UNAVAILABLE, "starting")}),
            ("NodeGetCapabilities", WARNING),
            "UNAVAILABLE: starting: a daemon registers the driver, and asks again",
            Fate.REGISTERED,
        ),
        (
            csi_driver(errors={CSICall.NODE_INFO: NOT_UNDERSTOOD}),
            ("NodeGetInfo", WARNING),
            "not implemented: the driver has no node id, and with --strict it is refused",
            Fate.REGISTERED,
        ),
        (csi_driver(max_volumes=-1), ("NodeGetInfo", WARNING), "max_volumes_per_node is -1", Fate.REGISTERED),
        (csi_driver(node_id=""), ("NodeGetInfo", WRONG), "driverNodeID must not be empty", Fate.FAILED),
        (csi_driver(hangs={CSICall.NODE_INFO}), ("NodeGetInfo", WRONG), "no answer in 0.", Fate.FAILED),
    ],
    ids=["good", "another name", "starting", "no NodeGetInfo", "volumes", "no node id", "hangs"],
)
async def test_a_csi_driver_is_asked_what_a_daemon_asks_at_its_registration(
    plugin: FakePlugin, expected: tuple[str, Verdict], detail: str, fate: Fate, tmp_path: Path
) -> None:
    """The calls only read, so a probe may make them."""
    path = tmp_path / "a.sock"
    async with fake(path, plugin):
        result = await probed(path, timeout=0.5 if "in 0." in detail else 5.0)
    assert expected in verdicts(result.steps)
    assert detail in " ".join(step.detail for step in result.steps)
    assert result.fate is fate


async def test_the_kubelet_asks_a_csi_driver_for_the_node_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    driver = FakeCSIDriver("other")
    async with fake(path, attrs.evolve(GOOD, serves=[driver])):
        result = await probed(path, strict=True)
    assert [call for _, call in driver.calls] == [CSICall.NODE_INFO]
    assert result.fate is Fate.REGISTERED
