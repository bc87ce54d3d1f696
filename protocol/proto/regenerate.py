"""Generate ``*_pb2.py``, ``*_pb2.pyi`` and ``*_grpc.py`` from the .proto files beside this module.

Run from the repository root, with the ``dev`` extra installed::

    python -m plugind.protocol.proto.regenerate

The generated files are committed, so that users need no compiler; a test runs :func:`generate` into a
temporary directory and compares, so that they stay fresh.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Where the files lie as modules: the generated imports are absolute, ``plugind.protocol.proto.x_pb2``.
MODULE_PATH = Path("plugind") / "protocol" / "proto"


def generate(target: Path) -> list[Path]:
    """Generate everything into the directory ``target``, and return the files made, sorted by name.

    Raises:
      subprocess.CalledProcessError: if the compiler refuses a .proto file; its own message is on standard error.
    """
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "plugind" / "protocol").mkdir(parents=True)
        (Path(scratch) / MODULE_PATH).symlink_to(HERE)
        output = Path(scratch) / "output"
        output.mkdir()
        sources = [str(MODULE_PATH / source.name) for source in sorted(HERE.glob("*.proto"))]
        arguments = [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpclib_python")]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{scratch}", *arguments, *sources]
        subprocess.run(command, check=True, env=_environment())
        # Not rename(): the scratch directory may lie on another file system.
        made = sorted((output / MODULE_PATH).iterdir())
        return [Path(shutil.move(path, target / path.name)) for path in made]


def _environment() -> dict[str, str]:
    """The compiler looks for grpclib's plugin by PATH, where a virtual environment that is not activated is not."""
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join((scripts, os.environ.get("PATH", os.defpath)))}


if __name__ == "__main__":
    for path in generate(HERE):
        print(path.name)
