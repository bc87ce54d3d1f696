"""Certificates that OpenSSL makes for a test, each its own authority."""

from __future__ import annotations

import subprocess
from pathlib import Path

import attrs

from plugind.tests.end_to_end.packages import program


@attrs.frozen
class Certificate:
    """The files of a certificate and of its key."""

    file: str
    key: str


def certificate(directory: Path, name: str) -> Certificate:
    """Make a certificate for a name, valid for a day; skip the test where OpenSSL's program is missing."""
    made = Certificate(str(directory / f"{name}.pem"), str(directory / f"{name}.key"))
    command = [
        program("openssl"),
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-days", "1"]
    files = ["-out", made.file, "-keyout", made.key]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True, timeout=60)
    return made
