"""Generate ``*_pb2.py``, ``*_pb2.pyi`` and ``*_grpc.py`` from the .proto files beside this module.

Run from the repository root, with the ``dev`` extra installed::

    python -m plugind.protocol.proto.regenerate

The generated files are committed, so that users need no compiler; a test runs :func:`generate` into a temporary
directory and compares, so that they stay fresh. What the compilers write is changed in three places: the messages go
into the pool of ``pool.py``, stubs have the methods of ``methods.py``, and imports inside of the package become
relative.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
#: Where the files lie as modules. The compilers write absolute imports, ``plugind.protocol.proto.x_pb2``.
MODULE_PATH = Path("plugind") / "protocol" / "proto"
_PACKAGE = ".".join(MODULE_PATH.parts)


#: What is replaced in the files whose names end so; each replacement must find its text.
REWRITES = {
    "_pb2.py": (
        ("from google.protobuf import descriptor_pool as _descriptor_pool\n", "from .pool import POOL as _POOL\n"),
        ("_descriptor_pool.Default()", "_POOL"),
    ),
    "_grpc.py": (
        (f"import {_PACKAGE}.", "from . import "),
        (f"{_PACKAGE}.", ""),
        ("import abc\n", '"""Generated stubs and service bases."""\nimport abc\n'),
        ("import grpclib.client\nif typing.TYPE_CHECKING:\n", "if typing.TYPE_CHECKING:\n    import grpclib.client\n"),
        ("\nfrom . import ", "\nfrom . import methods\nfrom . import "),
        ("channel: grpclib.client.Channel)", "channel: 'grpclib.client.Channel')"),
        ("= grpclib.client.", "= methods."),
    ),
    "_pb2.pyi": (),
}


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
        return [_rewrite(path, target / path.name) for path in sorted((output / MODULE_PATH).iterdir())]


def _rewrite(source: Path, target: Path) -> Path:
    """Write ``source`` to ``target`` with its replacements made.

    Raises:
      ValueError: if the compiler no longer writes what is to be replaced.
    """
    text = source.read_text()
    (rewrites,) = (rewrites for ending, rewrites in REWRITES.items() if source.name.endswith(ending))
    for old, new in rewrites:
        if old not in text:
            raise ValueError(f"{source.name} does not hold {old!r}")
        text = text.replace(old, new)
    target.write_text(text)
    return target


def _environment() -> dict[str, str]:
    """The compiler looks for grpclib's plugin by PATH, where a virtual environment that is not activated is not."""
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join((scripts, os.environ.get("PATH", os.defpath)))}


if __name__ == "__main__":
    # It takes no argument; --help says what it does, and does nothing.
    argparse.ArgumentParser(
        prog=f"python -m {_PACKAGE}.regenerate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    for path in generate(HERE):
        print(path.name)
