"""Go programs that tests build: those of ``tests/peers``, and ours with what Debian has of Go and of grpc-go.

For the second kind, ``apt install golang-go golang-goprotobuf-dev golang-google-grpc-dev`` installs all of it; nothing
is fetched while a program is built. The first build compiles grpc-go, which takes a minute on a busy machine; Go keeps
the result in the user's cache.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from plugind.tests.end_to_end.packages import GO_SOURCES, go_package, program
from plugind.tests.end_to_end.processes import finish
from plugind.tests.tools.peers import PEERS, MissingError, built

SOURCES = Path(__file__).parent / "plugins" / "go"
PROTO = Path(__file__).parents[2] / "protocol" / "proto"
NOMAD = Path(__file__).parents[2] / "examples" / "nomad"
#: The .proto file of each Go package that the programs import, below ``plugind/``.
PROTOS = {
    "csi": PROTO / "csi_v1.proto",
    "deviceplugin": PROTO / "deviceplugin_v1beta1.proto",
    "nomadbase": NOMAD / "nomad_base.proto",
    "nomaddevice": NOMAD / "nomad_device.proto",
    "pluginregistration": PROTO / "pluginregistration.proto",
}
#: Where Debian has the Go package of a .proto file that comes with protobuf.
WRAPPERS = "Mgoogle/protobuf/wrappers.proto=github.com/golang/protobuf/ptypes/wrappers"
#: Seconds in which grpc-go must be compiled.
BUILD_DEADLINE = 900.0


@functools.cache
def peer(name: str) -> str:
    """Build ``tests/peers/NAME`` and return the path of the program; skip the test where Go or a module is missing."""
    try:
        return str(built(PEERS / name))
    except MissingError as error:
        pytest.skip(f"the peer {name} cannot be built: {str(error).strip().splitlines()[-1]}")


@functools.cache
def go_program(name: str) -> str:
    """Build ``plugins/go/NAME.go`` and return the path of the program; skip the test where Go is missing."""
    go, generator = program("go"), program("protoc-gen-go")
    go_package("google.golang.org/grpc", "golang-google-grpc-dev")
    build, source = SOURCES / "build", SOURCES / f"{name}.go"
    build.mkdir(exist_ok=True)
    with (build / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for package in re.findall(r'"plugind/(\w+)"', source.read_text()):
            _generate(generator, PROTOS[package], build / "src" / "plugind" / package, package)
        main = build / "src" / "plugind" / name
        main.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, main / source.name)
        # Debian's packages of grpc-go are older than modules.
        settings = {"GO111MODULE": "off", "GOPATH": f"{build}:{GO_SOURCES}", "GOFLAGS": "", "GOTOOLCHAIN": "local"}
        _run([go, "build", "-o", str(build / name), f"plugind/{name}"], {**os.environ, **settings})
    return str(build / name)


def _generate(generator: str, proto: Path, into: Path, package: str) -> None:
    into.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(proto, into / proto.name)
    options = f"plugins=grpc,import_path={package},{WRAPPERS}"
    compiler = [sys.executable, "-m", "grpc_tools.protoc", f"--plugin=protoc-gen-go={generator}", f"-I{into}"]
    _run([*compiler, f"--go_out={options}:{into}", proto.name], dict(os.environ))


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = finish(command, env=environment, timeout=BUILD_DEADLINE)
    assert done.returncode == 0, f"{command[0]} failed: {done.stderr}"
