"""The Debian package that tests install and judge: ``PLUGIND_DEB`` names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "PLUGIND_DEB"


def package() -> Path:
    """Return the package; skip the test if there is none."""
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no package: 'python -m deploy.debian DIR' builds one (Debian package dpkg-dev)")
    return Path(os.environ[VARIABLE]).absolute()
