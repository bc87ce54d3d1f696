"""plugind in one process with other generated code for the same protobuf packages."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plugind.protocol.proto import regenerate

pytestmark = pytest.mark.extended

#: Our .proto files and their paths upstream; the protobuf packages are the same.
UPSTREAM = {
    "pluginregistration": "api",
    "csi_v1": "csi",
    "deviceplugin_v1beta1": "deviceplugin/v1beta1/api",
    "dra_v1": "dra/v1/api",
    "dra_v1beta1": "dra/v1beta1/api",
    "dra_health_v1": "dra_health/v1/api",
    "dra_health_v1alpha1": "dra_health/v1alpha1/api",
    "health_v1": "grpc_health_stub/v1/health",
}
#: Uses both sides once they are imported: the bytes of one are read as messages of the other.
USE = """
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == "upb", api_implementation.Type()

for ours, theirs in pairs:
    names = set(theirs.DESCRIPTOR.message_types_by_name)
    assert names and names == set(ours.DESCRIPTOR.message_types_by_name)
    for name in names:
        assert getattr(ours, name).DESCRIPTOR is not getattr(theirs, name).DESCRIPTOR
        assert getattr(theirs, name).FromString(getattr(ours, name)().SerializeToString()) == getattr(theirs, name)()

registration, api = pairs[0]
sent = api.PluginInfo(type="CSIPlugin", name="red.example.com", supported_versions=["1.0.0"])
received = registration.PluginInfo.FromString(sent.SerializeToString())
assert (received.type, received.name, list(received.supported_versions)) == ("CSIPlugin", "red.example.com", ["1.0.0"])

ours, theirs = pairs[1]
answer = ours.ProbeResponse()
answer.ready.value = True
assert theirs.ProbeResponse.FromString(answer.SerializeToString()).ready.value is True
print("both work")
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of stubs as an author generates them, with protoc and its gRPC plugin."""
    pytest.importorskip("grpc_tools", reason="PyPI package grpcio-tools")
    directory = tmp_path_factory.mktemp("stubs")
    for ours, theirs in UPSTREAM.items():
        target = directory / f"{theirs}.proto"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(regenerate.HERE / f"{ours}.proto", target)
    sources = [f"{theirs}.proto" for theirs in UPSTREAM.values()]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--grpc_python_out=.", *sources]
    subprocess.run(command, check=True, cwd=directory)
    return directory


def run_python(code: str, directory: Path) -> str:
    """Run ``code`` in a fresh interpreter that finds modules in ``directory``, and return what it prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


OURS = "import plugind.supervisor\n" + "".join(f"import plugind.protocol.proto.{ours}_grpc\n" for ours in UPSTREAM)
THEIRS = "".join(f"import {theirs.replace('/', '.')}_pb2_grpc\n" for theirs in UPSTREAM.values())
PAIRS = "import sys\npairs = [" + ", ".join(
    f"(sys.modules['plugind.protocol.proto.{ours}_pb2'], sys.modules['{theirs.replace('/', '.')}_pb2'])"
    for ours, theirs in UPSTREAM.items()
)


@pytest.mark.parametrize("imports", [OURS + THEIRS, THEIRS + OURS], ids=["ours first", "theirs first"])
def test_stubs_of_an_author_and_ours_can_be_imported_in_one_process(imports: str, stubs: Path) -> None:
    assert run_python(imports + PAIRS + "]\n" + USE, stubs) == "both work\n"


LIBRARIES = (
    "import grpc_health.v1.health_pb2, grpc_health.v1.health_pb2_grpc\n"
    "import pydra.core.generated.dra.dra_pb2, pydra.core.generated.pluginregistration.pluginregistration_pb2\n"
)


@pytest.mark.parametrize("imports", [OURS + LIBRARIES, LIBRARIES + OURS], ids=["ours first", "theirs first"])
def test_grpc_health_and_pydra_can_be_imported_beside_plugind(imports: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc_health", reason="PyPI package grpcio-health-checking")
    pytest.importorskip("pydra", reason="PyPI package kubernetes-pydra")
    check = (
        "from plugind.protocol.proto.health_v1_pb2 import HealthCheckRequest as Ours\n"
        "from grpc_health.v1.health_pb2 import HealthCheckRequest as Theirs\n"
        "assert Ours.DESCRIPTOR is not Theirs.DESCRIPTOR\n"
        "print(Theirs.FromString(Ours(service='a').SerializeToString()).service)"
    )
    assert run_python(imports + check, tmp_path) == "a\n"


def test_no_message_of_ours_is_in_the_default_pool() -> None:
    from google.protobuf import descriptor_pool

    from plugind.protocol.proto.pool import POOL

    for source in sorted(regenerate.HERE.glob("*.proto")):
        name = f"plugind/protocol/proto/{source.name}"
        importlib.import_module(f"plugind.protocol.proto.{source.stem}_pb2")
        assert POOL.FindFileByName(name).name == name
        with pytest.raises(KeyError):
            descriptor_pool.Default().FindFileByName(name)
