"""Which plugin has which endpoint, and which of two that name the same one may use it (fault 79)."""

from __future__ import annotations

from plugind.protocol.identity import Identity
from plugind.protocol.messages.status import PluginDisplaced
from plugind.protocol.plugins.info import PluginInfo
from plugind.protocol.world.endpoint_owners import EndpointOwner, EndpointOwners, belongs_to

RED, BLUE = ("CSIPlugin", "red"), ("CSIPlugin", "blue")
ANN = 1001


def file(number: int) -> Identity:
    return Identity(1, number, 0, handle=bytes([number]))


def plugin(name: str, socket: str, endpoint: str = "", *, uid: int = ANN, generation: int = 1) -> EndpointOwner:
    info = PluginInfo("CSIPlugin", name, endpoint or socket, (), uid)
    return EndpointOwner(info, socket, generation, privileged=uid == 0)


def found(
    owners: EndpointOwners, named: tuple[str, str], endpoint: str, at: Identity | None = None, *, uid: int = ANN
) -> str | None:
    """Return the socket of the plugin that keeps one of that name and user from an endpoint."""
    other = owners.other_owner(named, endpoint, at, privileged=uid == 0)
    return None if other is None else other.socket


def test_an_endpoint_belongs_to_one_name_and_its_instances_share_it() -> None:
    """Fault 79."""
    owners = EndpointOwners()
    owners.add(plugin("red", "/reg/a", "/e"), None)
    assert found(owners, RED, "/e") is None
    assert found(owners, BLUE, "/e") == "/reg/a"
    owners.add(plugin("red", "/reg/b", "/e"), None)
    owners.remove("/reg/a")
    assert found(owners, BLUE, "/e") == "/reg/b"
    owners.remove("/reg/b")
    assert found(owners, BLUE, "/e") is None
    assert not owners


def test_an_endpoint_is_the_same_under_another_spelling_and_as_a_hard_link() -> None:
    """Fault 79."""
    owners = EndpointOwners()
    owners.add(plugin("red", "/reg/a", "/d/e"), file(1))
    assert found(owners, BLUE, "/d//./e") == "/reg/a"
    assert found(owners, BLUE, "/d/hard-link", file(1)) == "/reg/a"
    assert found(owners, BLUE, "/d/other", file(2)) is None


def test_the_socket_of_another_plugin_that_serves_there_itself_is_its_endpoint() -> None:
    """Fault 79."""
    owners = EndpointOwners()
    owners.add_own(plugin("red", "/reg/a"), file(1))
    assert found(owners, BLUE, "/reg/a", file(1)) == "/reg/a"
    assert found(owners, RED, "/reg/a", file(1)) is None
    # It is removed, and its plugin is not deregistered yet.
    assert found(owners, BLUE, "/reg/a") == "/reg/a"
    # It was renamed, and its plugin has another name now.
    owners.add_own(plugin("blue", "/reg/b"), file(1))
    owners.remove("/reg/a")
    assert found(owners, RED, "/reg/b", file(1)) == "/reg/b"
    owners.remove("/reg/b")
    assert not owners


def test_a_socket_that_was_renamed_may_leave_before_its_plugin_of_the_former_path_does() -> None:
    """Faults 79 and 85: an error here would end the reconciler, and all plugins would be deregistered."""
    owners = EndpointOwners()
    owners.add_own(plugin("red", "/reg/a"), file(1))
    owners.add_own(plugin("blue", "/reg/b"), file(1))
    owners.remove("/reg/b")
    assert found(owners, BLUE, "/reg/a") == "/reg/a"
    owners.remove("/reg/a")
    assert not owners


def test_a_stranger_that_names_a_socket_first_does_not_keep_its_plugin_from_it() -> None:
    """Fault 79: nor may it use that socket any more, until its plugin leaves."""
    owners = EndpointOwners()
    owner = plugin("red", "/reg/a")
    assert owners.add(plugin("blue", "/reg/stranger", "/reg/a", generation=7), file(1)) == []
    reason = belongs_to("/reg/a", owner)
    assert owners.add_own(owner, file(1)) == [PluginDisplaced("/reg/stranger", 7, reason)]
    assert found(owners, BLUE, "/reg/a", file(1)) == "/reg/a"
    assert owners.remove("/reg/a") == [PluginDisplaced("/reg/stranger", 7, None)]
    assert found(owners, RED, "/elsewhere", file(1)) == "/reg/stranger"
    owners.remove("/reg/stranger")
    assert not owners


def test_a_privileged_plugin_gets_the_endpoint_that_another_user_named_first_and_that_plugin_stands_by() -> None:
    """Faults 79 and 80: a trusted user must not keep root's driver out."""
    owners = EndpointOwners()
    owners.add(plugin("blue", "/reg/ann", "/e", generation=7), file(1))
    owners.add(plugin("blue", "/reg/ann-2", "/e", generation=8), None)
    for endpoint, at in (("/e", None), ("/hard-link", file(1))):
        assert found(owners, RED, endpoint, at) == "/reg/ann"
        assert found(owners, RED, endpoint, at, uid=0) is None
    red = plugin("red", "/reg/root", "/e", uid=0)
    reason = belongs_to("/e", red)
    displaced = [PluginDisplaced("/reg/ann", 7, reason), PluginDisplaced("/reg/ann-2", 8, reason)]
    assert owners.add(red, file(1)) == displaced
    assert list(owners.displaced) == displaced
    # From now on it is that of the privileged one, for everybody.
    assert found(owners, BLUE, "/e") == found(owners, BLUE, "/e", uid=0) == "/reg/root"
    # A second instance is no news.
    assert owners.add(plugin("red", "/reg/root-2", "/e", uid=0), file(1)) == []
    assert owners.remove("/reg/ann-2") == [PluginDisplaced("/reg/ann-2", 8, None)]
    assert [news.reason for news in owners.remove("/reg/root")] == [
        belongs_to("/e", plugin("red", "/reg/root-2", "/e", uid=0))
    ]
    assert owners.remove("/reg/root-2") == [PluginDisplaced("/reg/ann", 7, None)]
    assert not list(owners.displaced)


def test_two_privileged_plugins_do_not_take_the_endpoint_of_each_other() -> None:
    """Fault 79."""
    owners = EndpointOwners()
    owners.add(plugin("blue", "/reg/a", "/e", uid=0), None)
    assert found(owners, RED, "/e", uid=0) == "/reg/a"


def test_the_socket_of_another_user_is_for_the_privileged_plugin_that_names_it() -> None:
    """Fault 79: whichever of them comes first."""
    for root_first in (True, False):
        owners = EndpointOwners()
        root, ann = plugin("red", "/reg/root", "/reg/ann", uid=0), plugin("blue", "/reg/ann")
        if root_first:
            owners.add(root, file(1))
            news = owners.add_own(ann, file(1))
        else:
            owners.add_own(ann, file(1))
            assert found(owners, RED, "/reg/ann", file(1), uid=0) is None
            news = owners.add(root, file(1))
        assert news == [PluginDisplaced("/reg/ann", 1, belongs_to("/reg/ann", root))]
