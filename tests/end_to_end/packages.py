"""Programs of other people that tests use where they are installed, and the Debian packages that bring them.

A test skips where its program is missing; the skip names the package that ends it, and README.md names them all.
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
    # Servers are in a directory that a user's path need not contain.
    found = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    if found is None:
        pytest.skip(f"{name} (Debian package {PACKAGES[name]}) is not installed")
    return found
