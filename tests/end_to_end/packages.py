"""Programs that tests use if they are installed, and the Debian packages that contain these programs.

A test is skipped if its program is missing; the reason names the package, and README.md names all of them.
"""

from __future__ import annotations

import os
import shutil

import pytest

#: The Debian package of each program.
PACKAGES = {
    "nghttp": "nghttp2-client",
    "h2load": "nghttp2-client",
    "nghttpd": "nghttp2-server",
    "node": "nodejs",
    "npm": "npm",
}


def program(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    # Servers are installed in a directory that may be missing from the path of a user.
    found = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    if found is None:
        pytest.skip(f"{name} (Debian package {PACKAGES[name]}) is not installed")
    return found
