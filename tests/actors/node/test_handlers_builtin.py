"""The handlers of the three built-in types."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from plugind.actors.handlers.csi.handler import CSIHandler
from plugind.actors.handlers.dra.handler import DRAHandler
from plugind.actors.handlers.handler import Handler, policy_of
from plugind.actors.handlers.instances import Instances
from plugind.actors.node.handlers import built_in_handlers
from plugind.protocol.errors import ValidationError
from plugind.protocol.plugins.info import InstancePolicy, Plugin
from plugind.testing import Call, FakePlugin, SimulatedNode


def csi(
    *versions: str, socket: str = "/reg/a.sock", endpoint: str = "/run/a.sock", generation: int = 1, old: bool = False
) -> Plugin:
    return Plugin("CSIPlugin", "a.example.com", endpoint, versions, socket, generation, old)


def dra(
    *services: str,
    name: str = "d.example.com",
    socket: str = "/reg/a.sock",
    endpoint: str = "/run/a.sock",
    generation: int = 1,
) -> Plugin:
    return Plugin("DRAPlugin", name, endpoint, services or ("v1.DRAPlugin",), socket, generation)


def device(name: str, socket: str = "/reg/a.sock") -> Plugin:
    return Plugin("DevicePlugin", name, "/run/a.sock", ("v1beta1",), socket, 1)


async def rejection(handler: Handler, plugin: Plugin) -> str | None:
    """Return why ``handler`` does not accept ``plugin``, or None."""
    try:
        call = handler.validate(plugin)
        assert call is not None
        await call
    except ValidationError as error:
        return str(error)
    return None


# --- instances --------------------------------------------------------------------------------------------------------


def test_an_instance_that_is_added_again_is_the_newest_and_listed_once() -> None:
    """TestPluginReRegistration for a handler; TestRegistrationHandler: replace."""
    instances = Instances()
    again = dra(generation=3)
    for plugin in (dra(generation=1), dra(socket="/reg/b.sock", generation=2), again):
        instances.add(plugin)

    assert instances.named("d.example.com") == (dra(socket="/reg/b.sock", generation=2), again)


def test_removing_one_instance_keeps_the_other_and_removing_a_missing_one_is_allowed() -> None:
    """Behaviour 37, fault 78; TestDelete: a removed driver is not found."""
    instances = Instances()
    instances.add(dra())
    instances.add(dra(socket="/reg/b.sock"))

    instances.remove(dra())
    assert instances.named("d.example.com") == (dra(socket="/reg/b.sock"),)
    instances.remove(dra())
    instances.remove(dra(socket="/reg/b.sock"))
    instances.remove(dra(name="nobody"))
    assert (instances.named("d.example.com"), list(instances), len(instances)) == ((), [], 0)


def test_an_instance_is_found_by_name_and_socket_however_many_there_were() -> None:
    instances, socket = Instances(), "/reg/b.sock"
    first, second = dra(), dra(socket=socket)
    for present in ((first,), (first, second), (first,), ()):
        for plugin in (first, second):
            (instances.add if plugin in present else instances.remove)(plugin)
        assert instances.named(first.name) == present
        assert instances.other_at_endpoint(dra(socket="/reg/c.sock")) == (present[0] if present else None)
        for plugin in present:
            assert instances.instance(plugin.name, plugin.socket) == plugin
    with pytest.raises(KeyError):
        instances.instance(first.name, socket)


# --- CSI --------------------------------------------------------------------------------------------------------------


CSI_FAILED = (
    "validation failed for CSI Driver a.example.com at endpoint /run/a.sock: kubernetes.io/csi: "
    'ValidatePlugin for CSI driver "a.example.com" failed. '
)


async def test_a_csi_driver_of_a_deprecated_root_must_be_of_0_x() -> None:
    """TestValidatePlugin; behaviour 16. Which versions are accepted elsewhere is a rule without I/O."""
    assert await rejection(CSIHandler(), csi("0.2.0", "v0.3.0", old=True)) is None
    assert await rejection(CSIHandler(), csi("0.3.0", "v1.2.3", old=True)) == (
        CSI_FAILED + "a CSI driver of version 1.0 or above may not register in a deprecated directory"
    )


@pytest.mark.parametrize(
    ("present", "coming", "accepted"),
    [
        (("1.0.0",), ("1.0.1",), True),
        (("1.9.0",), ("1.10.0",), True),
        (("0.3.0",), ("1.0.0",), True),
        (("1.0.0", "nonsense", "2.0.0"), ("1.1.0",), True),
        (("1.0.0",), ("1.0.0",), False),
        (("1.0.0",), ("v1.0.0",), False),
        (("1.0.0",), ("1.0",), False),
        (("1.0.0-rc.1",), ("1.0.0",), False),
        (("1.10.0",), ("1.9.0",), False),
        (("1.0.0",), ("0.9.0", "1.0.0-rc.1"), False),
        (("1.0.0",), ("1.0.0-rc.1", "1.0.1-rc.1"), True),
    ],
)
async def test_a_second_csi_driver_of_a_name_must_have_a_strictly_higher_version(
    present: tuple[str, ...], coming: tuple[str, ...], accepted: bool
) -> None:
    """TestValidatePluginExistingDriver; fault 78."""
    handler = CSIHandler()
    handler.keep(csi(*present))

    reason = await rejection(handler, csi(*coming, socket="/reg/b.sock", endpoint="/run/b.sock"))

    assert (reason is None) is accepted


async def test_a_conflict_of_csi_drivers_names_the_other_socket_and_its_version() -> None:
    """TestValidatePluginExistingDriver: the message says what to do."""
    handler = CSIHandler()
    handler.keep(csi("0.9.0", "1.10.0"))

    assert await rejection(handler, csi("1.9.0", socket="/reg/b.sock", endpoint="/run/b.sock")) == (
        CSI_FAILED.replace("/run/a.sock", "/run/b.sock")
        + 'Another driver with the same name is already registered with a higher supported version: "1.10.0"'
        + " (by the socket /reg/a.sock; bring a higher version, or remove that one)"
    )


async def test_a_csi_driver_of_a_deprecated_root_gives_way_to_one_of_1_x() -> None:
    """TestValidatePluginExistingDriver, behaviour 16: the rules for 1.x do not break over a registered 0.x."""
    handler = CSIHandler()
    old = csi("0.3.0", old=True)
    await handler.validate(old)
    handler.keep(old)

    assert await rejection(handler, csi("1.0.0", socket="/reg/b.sock", endpoint="/run/b.sock")) is None


@pytest.mark.parametrize("socket", ["/reg/a.sock", "/reg/restarted.sock"])
async def test_a_restarted_registrar_of_the_same_csi_driver_is_not_locked_out(socket: str) -> None:
    """Registrars hard-code "1.0.0", so the same endpoint counts as the same driver."""
    handler = CSIHandler()
    handler.keep(csi("1.0.0"))

    assert await rejection(handler, csi("1.0.0", socket=socket, generation=2)) is None


async def test_a_csi_driver_is_accepted_once_the_other_of_its_name_is_gone() -> None:
    """Fault 78."""
    handler = CSIHandler()
    lower = csi("1.0.0", socket="/reg/b.sock", endpoint="/run/b.sock")
    handler.keep(csi("1.5.0"))
    assert await rejection(handler, lower) is not None

    await handler.deregister(csi("1.5.0"))

    assert await rejection(handler, lower) is None


# --- DRA --------------------------------------------------------------------------------------------------------------


async def test_one_endpoint_serves_one_dra_driver_only() -> None:
    """TestAddSameName: the same endpoint twice is an error; fault 78."""
    handler = DRAHandler()
    handler.drivers.add(dra())

    assert await rejection(handler, dra(socket="/reg/b.sock")) == (
        "endpoint /run/a.sock already registered for DRA driver plugin d.example.com (by the socket /reg/a.sock)"
    )


async def test_a_dra_driver_that_registers_again_on_its_own_socket_is_not_refused() -> None:
    """TestRegistrationHandler: replace."""
    handler = DRAHandler()
    handler.drivers.add(dra())
    assert await rejection(handler, dra(generation=2)) is None
    assert policy_of(handler) is InstancePolicy.NEWEST


# --- what a plugin is sent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugin", "error", "cause"),
    [
        (
            FakePlugin("DevicePlugin", "vendor.example/gpu", ("1.0.0",)),
            "manager version, v1beta1, is not among plugin supported versions [1.0.0]",
            None,
        ),
        (
            FakePlugin("DevicePlugin", "mykubernetes.io/gpu", ("v1beta1",)),
            'invalid name of device plugin socket: the ResourceName "mykubernetes.io/gpu" is invalid: '
            '"kubernetes.io/" is for the resources of Kubernetes itself',
            None,
        ),
        (
            FakePlugin("CSIPlugin", "a.example.com", ("1", "0.3.0")),
            "validation failed for CSI Driver a.example.com at endpoint /plugins/a.sock: kubernetes.io/csi: "
            'ValidatePlugin for CSI driver "a.example.com" failed. None of the versions specified ["1" "0.3.0"] are '
            "supported. err=highest supported version reported is 0.3.0, must be v1.x",
            'None of the versions specified ["1" "0.3.0"] are supported. err=highest supported version reported is '
            "0.3.0, must be v1.x",
        ),
        (
            FakePlugin("DRAPlugin", "d.example.com", ("1.0.0",)),
            "invalid supported gRPC versions of DRA driver plugin d.example.com at endpoint /plugins/a.sock: none of "
            'services supported by the plugin (["1.0.0"]) are supported by the kubelet '
            '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])',
            'none of services supported by the plugin (["1.0.0"]) are supported by the kubelet '
            '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])',
        ),
    ],
    ids=lambda value: value.name if isinstance(value, FakePlugin) else "",
)
async def test_a_refused_plugin_gets_the_kubelets_message_and_users_see_the_cause(
    plugin: FakePlugin, error: str, cause: str | None, autojump_clock: MockClock
) -> None:
    """Behaviours 30 and 44."""
    async with SimulatedNode(handlers=built_in_handlers()) as node:
        plugged = node.plug("a.sock", plugin)
        await trio.sleep(0.25)
        shown = node.status("a.sock")
        assert shown is not None
        assert shown.cause == f"plugin validation failed: {cause or error}"
        assert plugged.calls == [
            Call(0.0, "GetInfo"),
            Call(
                0.0,
                "NotifyRegistrationStatus",
                registered=False,
                error=f"RegisterPlugin error -- plugin validation failed with err: {error}",
            ),
        ]


@pytest.mark.parametrize(
    "plugin",
    [
        FakePlugin("DevicePlugin", "vendor.example/gpu", ("v1alpha1", "v1beta1")),
        FakePlugin("CSIPlugin", "a.example.com", ("1.0.",)),
        FakePlugin("CSIPlugin", "a.example.com", ("2.0.0", "v1.3.0-rc.1", "later")),
        FakePlugin("DRAPlugin", "d.example.com", ("v9.DRAPlugin", "v1beta1.DRAPlugin")),
    ],
    ids=lambda plugin: f"{plugin.type} {' '.join(plugin.versions)}",
)
async def test_what_the_kubelet_accepts_is_registered(plugin: FakePlugin, autojump_clock: MockClock) -> None:
    """Behaviour 44."""
    async with SimulatedNode(handlers=built_in_handlers()) as node:
        node.plug("a.sock", plugin)
        await node.settled()
        assert node.state("a.sock") == "registered"
