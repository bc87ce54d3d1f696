"""Programs that tests use if they are installed, and the Debian packages that contain these programs.

A test is skipped if its program is missing; the reason names the package, and README.md names all of them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

#: The Debian package of each program.
PACKAGES = {
    "node": "nodejs",
    "npm": "npm",
    "go": "golang-go",
    "protoc-gen-go": "golang-goprotobuf-dev",
    "podman": "podman",
    "runc": "runc",
    "busybox": "busybox-static",
    "bwrap": "bubblewrap",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container",
    "nsenter": "util-linux",
    "promtool": "prometheus",
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "bash": "bash",
    "zsh": "zsh",
    "fish": "fish",
    "man": "man-db",
    "groff": "groff-base",
    "sh": "dash",
    "dpkg-deb": "dpkg",
    "lintian": "lintian",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "jq": "jq",
    "shellcheck": "shellcheck",
    "nginx": "nginx-light",
    "caddy": "caddy",
    "openssl": "openssl",
}


def program(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    # Servers are installed in a directory that may be missing from the path of a user.
    found = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    if found is None:
        pytest.skip(f"{name} (Debian package {PACKAGES[name]}) is not installed")
    return found


#: Where Debian puts the sources of Go packages.
GO_SOURCES = Path("/usr/share/gocode")


def go_package(name: str, package: str) -> None:
    """Skip the test if the sources of a Go package are not installed; ``package`` is the Debian package."""
    if not (GO_SOURCES / "src" / name).is_dir():
        pytest.skip(f"the Go package {name} (Debian package {package}) is not installed")
