"""The handlers of installed packages: found by their entry points, which few nodes have."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from plugind.actors.node.handlers import installed_handlers
from plugind.protocol.errors import ConfigError

COLOURS = """
class ColourHandler:
    async def validate(self, plugin): ...
    async def register(self, plugin): ...
    async def deregister(self, plugin): ...
"""
METADATA = "Metadata-Version: 2.1\nName: colours\nVersion: 1\n"
ENTRY_POINTS = "[plugind.handlers]\nColour = colours_of_a_package:ColourHandler\n"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "colours_of_a_package", raising=False)
    return tmp_path


def install(packages: Path, entry_points: str = ENTRY_POINTS, info: str = "colours-1.dist-info") -> None:
    (packages / info).mkdir(parents=True)
    (packages / "colours_of_a_package.py").write_text(COLOURS)
    (packages / info / ("METADATA" if info.endswith("dist-info") else "PKG-INFO")).write_text(METADATA)
    (packages / info / "entry_points.txt").write_text(entry_points)


@pytest.mark.parametrize("info", ["colours-1.dist-info", "colours-1.egg-info"])
def test_handlers_are_found_by_the_entry_points_of_their_group(info: str, packages: Path) -> None:
    install(packages, info=info)
    assert [(name, type(handler).__name__) for name, handler in installed_handlers().items()] == [
        ("Colour", "ColourHandler")
    ]


def test_a_handler_in_an_archive_is_found(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(packages / "colours.zip", "w") as archive:
        archive.writestr("colours_of_a_package.py", COLOURS)
        archive.writestr("colours-1.dist-info/METADATA", METADATA)
        archive.writestr("colours-1.dist-info/entry_points.txt", ENTRY_POINTS)
    monkeypatch.syspath_prepend(packages / "colours.zip")
    assert list(installed_handlers()) == ["Colour"]


def test_a_handler_that_a_finder_of_its_own_knows_is_found(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(packages / "elsewhere", info="hidden/colours-1.dist-info")

    class Finder:
        @staticmethod
        def find_spec(*_: object) -> None:
            return None

        @staticmethod
        def find_distributions(_: object) -> list[PathDistribution]:
            return [PathDistribution(packages / "elsewhere" / "hidden" / "colours-1.dist-info")]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    monkeypatch.syspath_prepend(packages / "elsewhere")
    assert list(installed_handlers()) == ["Colour"]


@pytest.mark.parametrize("value", ["colours_of_a_package:Missing", "no_such_package:ColourHandler"])
def test_a_handler_that_cannot_be_loaded_is_bad_configuration(value: str, packages: Path) -> None:
    install(packages, f"[plugind.handlers]\nColour = {value}\n")
    with pytest.raises(ConfigError, match=rf"the handler for Colour \({value}\) cannot be loaded"):
        installed_handlers()


def test_a_type_that_two_distributions_have_a_handler_for_is_an_error_that_names_both(packages: Path) -> None:
    """The last one that was found had the type."""
    install(packages)
    install(packages, info="more_colours-2.dist-info")
    (packages / "more_colours-2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: more\nVersion: 2\n")
    both = r"(colours 1|more 2) \(colours_of_a_package:ColourHandler\)"
    with pytest.raises(ConfigError, match=f"^{both} and {both} each have a handler for Colour: uninstall one of them$"):
        installed_handlers()


def test_where_no_handler_is_installed_nothing_is_imported_to_find_that_out() -> None:
    code = (
        "import sys; from plugind.actors.node.handlers import installed_handlers\n"
        "assert installed_handlers() == {}; print('importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
