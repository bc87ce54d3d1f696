"""The texts of the Debian package: its configuration file, its changelog, and the licences of what it contains."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

from plugind.actors.console import commands
from plugind.deploy.debian.documents import documents, missing
from plugind.deploy.debian.sample import sample
from plugind.deploy.debian.texts import Bundled, bundled, copyright_file, debian
from plugind.protocol.settings.table import settings
from plugind.tests.end_to_end.processes import finish
from plugind.tests.tools.settings_table import DEFAULTS

pytestmark = pytest.mark.extended

REPOSITORY = Path(__file__).parents[2]
#: A setting, or the name of a table, as a comment: there is no space behind the sign.
COMMENTED = re.compile(r"^#(?=[a-z\[])", re.MULTILINE)


def test_with_all_comments_taken_away_the_configuration_file_has_each_setting_with_its_default() -> None:
    assert tomllib.loads(sample()) == {}
    whole = tomllib.loads(COMMENTED.sub("", sample()))
    for setting in settings().values():
        *parts, name = setting.key.split(".")
        table = whole
        for part in parts:
            table = table[part]
        value = setting.from_toml(table.pop(name))
        assert setting.key in DEFAULTS or value == setting.default, setting.key

    def left(table: dict[str, object]) -> list[object]:
        return [item for value in table.values() for item in (left(value) if isinstance(value, dict) else [value])]

    assert left(whole) == []


@pytest.mark.parametrize("text", [sample(), COMMENTED.sub("", sample())], ids=["as it is", "without comments"])
def test_the_configuration_file_can_be_used(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plugind.toml"
    path.write_text(text)
    path.chmod(0o644)
    assert commands.main(["config", "check", str(path)]) == 0


def os_release(version: str, name: str = "debian") -> dict[str, str]:
    return {"ID": name, "VERSION_ID": version, "PRETTY_NAME": f"{name.title()} {version}"}


def test_a_package_is_for_the_debian_on_which_it_is_built_with_the_python_of_that_debian() -> None:
    assert [debian(os_release("12"), (3, 11)), debian(os_release("13"), (3, 13))] == ["12", "13"]
    known = "build the package on Debian 12 with Python 3.11 or Debian 13 with Python 3.13"
    for system, python, said in (
        (os_release("12"), (3, 13), "Debian 12 with Python 3.13"),
        (os_release("13", "other"), (3, 13), "Other 13 with Python 3.13"),
        ({"ID": "debian", "PRETTY_NAME": "Debian forky/sid"}, (3, 13), "Debian forky/sid with Python 3.13"),
    ):
        with pytest.raises(ValueError, match=f"^this is {said}: {known}$"):
            debian(system, python)


def test_a_licence_is_quoted_whole_and_debians_text_of_apache_is_referred_to() -> None:
    text = "MIT License\n\nCopyright (c) 2020 A. Author\n\nPermission is granted."
    apache = "Apache License\n   Version 2.0, January 2004\n\nCopyright 1999 Nobody"
    parts = [
        Bundled("one", "1.2", ("one/*",), "MIT", (text, apache), "an author"),
        Bundled("two", "3", ("two.py",), "MIT -or- Apache License 2.0", (), "B. Author"),
    ]
    _, own, first, second = copyright_file(parts).split("\n\n")
    refer = "On Debian systems, the text of the licence is in /usr/share/common-licenses/Apache-2.0."
    assert own == f"Files: *\nCopyright: the authors of plugind\nLicense: Apache-2.0\n {refer}"
    assert first == (
        "Files: usr/lib/plugind/one/*\nCopyright: 2020 A. Author\nComment: one 1.2, as it is on PyPI.\nLicense: MIT\n"
        f" MIT License\n .\n Copyright (c) 2020 A. Author\n .\n Permission is granted.\n .\n {refer}"
    )
    assert second == (
        "Files: usr/lib/plugind/two.py\nCopyright: B. Author\nComment: two 3, as it is on PyPI.\n"
        f"License: MIT-or-Apache-License-2.0\n MIT -or- Apache License 2.0\n .\n {refer}\n"
    )


@pytest.mark.parametrize("name", ["attrs", "trio", "protobuf", "sortedcontainers"])
def test_what_is_installed_says_its_licence(name: str) -> None:
    found = bundled(distribution(name))
    assert (found.name, found.version) == (name, distribution(name).version)
    assert "see below" not in found.licence
    assert found.texts
    assert f"{name.replace('protobuf', 'google')}/*" in found.places or name == "attrs"


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
OF_SOURCE = re.compile(r"`[^`]+` \(in plugind's source\)")


def test_what_a_document_of_the_package_names_is_in_the_package_or_said_to_be_elsewhere() -> None:
    files = documents()
    pages = {name: content.decode() for name, content in files.items() if name.endswith(".md")}
    assert {"README.md", "SECURITY.md", "docs/operations.md", "docs/leases.md"} <= {*pages}
    for name, text in pages.items():
        assert [*missing(OF_SOURCE.sub("", text), files)] == [], name
        links = [link for link in LINK.findall(text) if "://" not in link]
        assert [link for link in links if str(Path(name).parent / link) not in files] == [], name
        # Without Sphinx, its directives would be seen.
        assert "```{" not in text


@pytest.mark.parametrize("tool", ["deploy.debian", "deploy.manuals"])
def test_without_the_extra_dev_the_tool_says_that_it_needs_it(tool: str, tmp_path: Path) -> None:
    """After ``pip install -e .`` there was a traceback."""
    for name in ("argparse_manpage", "shtab"):
        (tmp_path / f"{name}.py").write_text("raise ModuleNotFoundError('No module of dev')\n")
    done = finish(
        [sys.executable, "-m", tool, str(tmp_path / "out")],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    said = "No module of dev: install plugind from this tree with its extra dev: "
    assert (done.returncode, done.stderr) == (1, f"{said}pip install -e '.[dev]'\n")
