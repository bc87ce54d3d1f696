"""Build the Debian package of plugind from this tree, for the Debian on which this runs: 12 or 13, with its Python.

    python -m deploy.debian DIR

It needs the packages dpkg-dev and binutils, the extra dev of plugind, and an index of Python packages, from which it
takes the wheels of ``.ci/requirements/run.txt``, each with its hash. Two builds of a commit with the same options give
the same bytes: all times in the package are ``SOURCE_DATE_EPOCH``, or else that of the commit.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

try:
    from plugind.deploy.debian.build import REPOSITORY, build
    from plugind.deploy.debian.texts import Release, debian
    from plugind.protocol.version import __version__
except ModuleNotFoundError as error:
    sys.exit(f"{error}: install plugind from this tree with its extra dev: pip install -e '.[dev]'")


def main() -> None:
    """Build it, and print its path."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.debian", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the package is written")
    parser.add_argument(
        "--revision", default="1", metavar="N", help="what follows the version of plugind (%(default)s)"
    )
    parser.add_argument(
        "--maintainer",
        default=f"{os.environ.get('DEBFULLNAME', 'plugind')} <{os.environ.get('DEBEMAIL', 'plugind@example.com')}>",
        metavar="'NAME <ADDRESS>'",
        help="who is to be asked about the package (default: $DEBFULLNAME <$DEBEMAIL>)",
    )
    args = parser.parse_args()
    try:
        place = debian(platform.freedesktop_os_release(), sys.version_info[:2])
    except ValueError as error:
        sys.exit(str(error))
    # The manual pages have the day, too.
    epoch = os.environ.setdefault("SOURCE_DATE_EPOCH", _said("git", "log", "-1", "--format=%ct"))
    architecture = _said("dpkg", "--print-architecture")
    # Debian 13's package is the newer one, so that an upgrade of Debian replaces that of Debian 12.
    version = f"{__version__}-{args.revision}+deb{place}"
    release = Release(version, architecture, args.maintainer, int(epoch))
    print(build(args.directory, release))


def _said(*command: str) -> str:
    return subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
