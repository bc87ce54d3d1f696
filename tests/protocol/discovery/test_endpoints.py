"""Which endpoints a plugin may name."""

from __future__ import annotations

import pytest

from plugind.protocol.discovery.endpoints import FoundFile, default_directories, refusal
from plugind.protocol.discovery.sockets import EntryKind

DIRECTORIES = ("/reg", "/link")


def resolve(path: str) -> str:
    return {"/link": "/real"}.get(path, path)


def said(endpoint: str, kind: EntryKind | None = EntryKind.SOCKET, real: str | None = None) -> str | None:
    return refusal(endpoint, FoundFile(endpoint if real is None else real, kind), DIRECTORIES, resolve)


@pytest.mark.parametrize(
    ("endpoint", "real"),
    [
        ("/reg/a.sock", "/reg/a.sock"),
        ("/reg/deep/er/a.sock", "/reg/deep/er/a.sock"),
        ("/link/a.sock", "/real/a.sock"),
        ("/elsewhere/a.sock", "/reg/a.sock"),
    ],
)
@pytest.mark.parametrize("kind", [EntryKind.SOCKET, None])
def test_an_endpoint_in_an_allowed_directory_is_accepted_even_if_it_does_not_exist_yet(
    endpoint: str, real: str, kind: EntryKind | None
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
    [
        (EntryKind.SYMLINK, "is a symbolic link"),
        (EntryKind.DIRECTORY, "is a directory"),
        (EntryKind.OTHER, "is no socket"),
    ],
)
def test_an_endpoint_that_is_no_socket_is_refused_wherever_it_is(kind: EntryKind, words: str) -> None:
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
