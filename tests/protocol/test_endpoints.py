"""Which endpoints a plugin may name, and to whom one belongs."""

from __future__ import annotations

import pytest

from plugind.protocol.discovery import Kind
from plugind.protocol.endpoints import EndpointOwners, FoundFile, belongs_to, default_directories, refusal
from plugind.protocol.identity import Identity

DIRECTORIES = ("/reg", "/link")
RED, BLUE = ("CSIPlugin", "red"), ("CSIPlugin", "blue")


def resolve(path: str) -> str:
    return {"/link": "/real"}.get(path, path)


def said(endpoint: str, kind: Kind | None = Kind.SOCKET, real: str | None = None) -> str | None:
    return refusal(endpoint, FoundFile(endpoint if real is None else real, kind), DIRECTORIES, resolve)


def file(number: int) -> Identity:
    return Identity(1, number, 0, handle=bytes([number]))


@pytest.mark.parametrize(
    ("endpoint", "real"),
    [
        ("/reg/a.sock", "/reg/a.sock"),
        ("/reg/deep/er/a.sock", "/reg/deep/er/a.sock"),
        ("/link/a.sock", "/real/a.sock"),
        ("/elsewhere/a.sock", "/reg/a.sock"),
    ],
)
@pytest.mark.parametrize("kind", [Kind.SOCKET, None])
def test_an_endpoint_in_an_allowed_directory_is_accepted_even_if_it_does_not_exist_yet(
    endpoint: str, real: str, kind: Kind | None
) -> None:
    """Fault 43: what counts are the real paths on both sides."""
    assert said(endpoint, kind, real) is None


@pytest.mark.parametrize(
    ("endpoint", "real"),
    [
        ("/etc/a.sock", "/etc/a.sock"),
        ("/reg/out/a.sock", "/root-only/a.sock"),
        ("/registry/a.sock", "/registry/a.sock"),
        ("/reg", "/reg"),
    ],
)
def test_an_endpoint_outside_is_refused_with_the_directories_and_the_flag(endpoint: str, real: str) -> None:
    """Fault 43."""
    directory = real.rpartition("/")[0]
    assert said(endpoint, real=real) == (
        f"the endpoint '{endpoint}' is in none of the directories for endpoints, /reg, /link: move it there,"
        f" or run plugind with --endpoint-dir {directory or '/'}"
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Kind.SYMLINK, "is a symbolic link"), (Kind.DIRECTORY, "is a directory"), (Kind.OTHER, "is no socket")],
)
def test_an_endpoint_that_is_no_socket_is_refused_wherever_it_is(kind: Kind, words: str) -> None:
    """Fault 43: /etc/passwd is no endpoint, and neither is a link to the socket of somebody else."""
    for endpoint in ("/reg/a.sock", "/etc/passwd"):
        assert str(said(endpoint, kind)).startswith(f"the endpoint '{endpoint}' {words}")


@pytest.mark.parametrize(("endpoint", "real"), [("/proc/1/root/a", "/reg/a"), ("/reg/a", "/proc/1/root/a")])
def test_an_endpoint_in_proc_is_refused(endpoint: str, real: str) -> None:
    """Fault 43: ``/proc/PID/root`` and ``/proc/PID/fd`` lead anywhere."""
    assert "is in /proc" in str(said(endpoint, real=real))


def test_endpoints_are_in_the_roots_and_beside_the_directory_of_the_kubelet() -> None:
    """Fault 43: the layout of the kubelet works unchanged."""
    assert default_directories(["/var/lib/kubelet/plugins_registry", "/run/mine"]) == (
        "/var/lib/kubelet/plugins_registry",
        "/var/lib/kubelet/plugins",
        "/var/lib/kubelet/csi-plugins",
        "/var/lib/kubelet/device-plugins",
        "/run/mine",
    )
    assert default_directories(["/var/lib/kubelet/plugins_registry/mine"]) == (
        "/var/lib/kubelet/plugins_registry/mine",
    )


def test_an_endpoint_belongs_to_one_name_and_its_instances_share_it() -> None:
    """Fault 79."""
    owners = EndpointOwners()
    owners.add("/reg/a", RED, "/e", None)
    assert owners.other_owner(RED, "/e", None) is None
    assert owners.other_owner(BLUE, "/e", None) == RED
    owners.add("/reg/b", RED, "/e", None)
    owners.remove("/reg/a")
    assert owners.other_owner(BLUE, "/e", None) == RED
    owners.remove("/reg/b")
    assert owners.other_owner(BLUE, "/e", None) is None
    assert not owners


def test_an_endpoint_is_the_same_under_another_spelling_and_as_a_hard_link() -> None:
    """Fault 79."""
    owners = EndpointOwners()
    owners.add("/reg/a", RED, "/d/e", file(1))
    assert owners.other_owner(BLUE, "/d//./e", None) == RED
    assert owners.other_owner(BLUE, "/d/hard-link", file(1)) == RED
    assert owners.other_owner(BLUE, "/d/other", file(2)) is None


def test_the_socket_of_another_plugin_that_serves_there_itself_is_its_endpoint() -> None:
    """Fault 79."""
    owners = EndpointOwners()
    owners.add_own("/reg/a", RED, file(1))
    assert owners.other_owner(BLUE, "/reg/a", file(1)) == RED
    assert owners.other_owner(RED, "/reg/a", file(1)) is None
    # It is removed, and its plugin is not deregistered yet.
    assert owners.other_owner(BLUE, "/reg/a", None) == RED
    # It was renamed, and its plugin has another name now.
    owners.add_own("/reg/b", BLUE, file(1))
    owners.remove("/reg/a")
    assert owners.other_owner(RED, "/reg/b", file(1)) == BLUE
    owners.remove("/reg/b")
    assert not owners


def test_a_socket_that_was_renamed_may_leave_before_its_plugin_of_the_former_path_does() -> None:
    """Faults 79 and 85: an error here would end the reconciler, and all plugins would be deregistered."""
    owners = EndpointOwners()
    owners.add_own("/reg/a", RED, file(1))
    owners.add_own("/reg/b", BLUE, file(1))
    owners.remove("/reg/b")
    assert owners.other_owner(BLUE, "/reg/a", None) == RED
    owners.remove("/reg/a")
    assert not owners


def test_a_stranger_that_names_a_socket_first_does_not_keep_its_plugin_from_it() -> None:
    """Fault 79."""
    owners = EndpointOwners()
    owners.add("/reg/stranger", BLUE, "/reg/a", file(1))
    owners.add_own("/reg/a", RED, file(1))
    assert owners.other_owner(BLUE, "/reg/a", file(1)) == RED
    owners.remove("/reg/a")
    assert owners.other_owner(RED, "/elsewhere", file(1)) == BLUE
    owners.remove("/reg/stranger")
    assert not owners


def test_the_reason_names_the_owner() -> None:
    """Fault 79."""
    assert (
        belongs_to("/e", RED) == "the endpoint '/e' belongs to CSIPlugin 'red': give this plugin an endpoint of its own"
    )
