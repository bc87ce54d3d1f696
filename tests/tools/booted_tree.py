"""Make the Debian tree that ``tests/end_to_end/booted.py`` boots: about 300 MB, and a minute on an idle machine.

``python -m tests.tools.booted_tree DIR`` installs Debian 12 with systemd and Python in ``DIR``, which must not exist;
``--suite trixie`` makes it Debian 13. debootstrap does that, as root, from a mirror of Debian (``--mirror``). Then::

    PLUGIND_TREE=DIR .venv/bin/pytest tests/end_to_end/test_booted_service.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from plugind.tests.end_to_end.booted import PACKAGES

MIRROR = "http://deb.debian.org/debian"


def main() -> int:
    """Make the tree; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--suite", default="bookworm", help="the release of Debian (default: %(default)s)")
    parser.add_argument("--mirror", default=MIRROR, help="the mirror of Debian (default: %(default)s)")
    args = parser.parse_args()
    if args.directory.exists():
        print(f"{args.directory} is there: remove it, or name another directory", file=sys.stderr)
        return 1
    if shutil.which("debootstrap", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin") is None:
        print("debootstrap (Debian package debootstrap) is not installed", file=sys.stderr)
        return 1
    began = time.monotonic()
    # Under another name at first, so that a tree that is there is whole.
    unfinished = args.directory.with_name(f".{args.directory.name}.{os.getpid()}")
    options = ["--variant=minbase", f"--include={','.join(PACKAGES)}"]
    try:
        command = ["debootstrap", *options, args.suite, str(unfinished), args.mirror]
        environment = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"}
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False, env=environment).returncode:
            return 1
        unfinished.rename(args.directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    print(f"{args.directory} was made in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
