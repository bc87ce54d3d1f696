"""``plugind install-unit``: what it prints, what it writes, and what it leaves alone."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import attrs
import pytest

from plugind.actors.console import commands, install_unit, status_socket
from plugind.actors.console.status_socket import UNIT, unreachable
from plugind.actors.console.unit_files import DROP_INS, drop_ins, files, quoted
from plugind.actors.http.client import UnreachableError

REPOSITORY = Path(__file__).parents[3]
ALL = [f"--{name}" for name in drop_ins()]
COMMAND = ("--command", "/usr/bin/plugind")


def install(directory: Path, *options: str) -> int:
    return commands.main(["install-unit", "--directory", str(directory), *COMMAND, *options])


def contents(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def test_the_files_in_deploy_are_those_that_the_command_writes(tmp_path: Path) -> None:
    assert install(tmp_path, *ALL) == 0
    deployed = contents(REPOSITORY / "deploy" / "systemd")
    # It brings the package to other hosts, and is no part of the service.
    del deployed["roll-out.sh"]
    # Services of others, which have leases.
    deployed = {name: text for name, text in deployed.items() if not name.startswith("examples/")}
    assert deployed == contents(tmp_path) == files("/usr/bin/plugind", drop_ins())


def test_only_the_drop_ins_that_are_named_are_written_and_anybody_may_read_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(tmp_path, "--leases") == 0
    written = [tmp_path / UNIT, tmp_path / "plugind.service.d" / "leases.conf"]
    assert sorted(contents(tmp_path)) == ["plugind.service", "plugind.service.d/leases.conf"]
    assert [path.stat().st_mode & 0o777 for path in (*written, written[1].parent)] == [0o644, 0o644, 0o755]
    assert capsys.readouterr().out == "".join(f"{path} was written\n" for path in written)
    assert install(tmp_path, "--leases") == 0
    assert capsys.readouterr().out == "".join(f"{path} is as it should be\n" for path in written)


def test_nothing_is_written_if_one_file_was_changed_unless_it_is_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / UNIT).write_text("[Service]\nNice=5\n")
    assert install(tmp_path, "--leases") == 1
    assert contents(tmp_path) == {UNIT: "[Service]\nNice=5\n"}
    advice = "is not what would be written: compare it with --print, and replace it with --force; nothing was written"
    assert capsys.readouterr().err == f"plugind: {tmp_path / UNIT} {advice}\n"
    assert install(tmp_path, "--leases", "--force") == 0
    assert contents(tmp_path) == files("/usr/bin/plugind", ["leases"])
    assert capsys.readouterr().out.splitlines()[0] == f"{tmp_path / UNIT} was replaced"


def test_a_masked_unit_stays_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / UNIT).symlink_to("/dev/null")
    assert install(tmp_path) == 1
    assert (tmp_path / UNIT).is_symlink()
    assert "nothing was written" in capsys.readouterr().err


@attrs.frozen
class Packaged:
    """A machine on which a package has the unit."""

    directory: Path
    shared: Path
    unit: Path

    def install(self, *options: str) -> int:
        return commands.main(["install-unit", *options])


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    places = [tmp_path / name for name in ("etc", "share", "usr-lib")]
    for place in places:
        place.mkdir()
    (unit := places[2] / UNIT).touch()
    monkeypatch.setattr(install_unit, "DIRECTORY", str(places[0]))
    monkeypatch.setattr(install_unit, "SHARED", str(places[1]))
    monkeypatch.setattr(install_unit, "PACKAGED", (str(tmp_path / "none"), str(places[2])))
    monkeypatch.setattr(status_socket, "UNIT_DIRECTORIES", (str(places[0]), str(places[2])))
    return Packaged(places[0], places[1], unit)


RESTART = "have them used: systemctl daemon-reload && systemctl restart plugind\n"


def test_where_a_package_has_the_unit_only_links_to_its_drop_ins_are_written(
    packaged: Packaged, capsys: pytest.CaptureFixture[str]
) -> None:
    (packaged.shared / DROP_INS).mkdir()
    (target := packaged.shared / DROP_INS / "leases.conf").write_text("[Service]\n")
    assert packaged.install("--leases", "--devices") == 0
    link, file = (packaged.directory / DROP_INS / f"{name}.conf" for name in ("leases", "devices"))
    # The package may be an older one, which does not have it.
    assert (link.readlink(), file.is_symlink()) == (target, False)
    assert file.read_text() == files("", ["devices"])[f"{DROP_INS}/devices.conf"]
    assert [path.name for path in packaged.directory.iterdir()] == [DROP_INS]
    assert capsys.readouterr().out == f"{file} was written\n{link} was written\n{RESTART}"
    assert packaged.install("--leases", "--devices") == 0
    assert capsys.readouterr().out == f"{file} is as it should be\n{link} is as it should be\n{RESTART}"
    link.unlink()
    link.write_text("[Service]\nNice=5\n")
    assert packaged.install("--leases") == 1
    assert not link.is_symlink()
    assert packaged.install("--leases", "--force") == 0
    assert link.readlink() == target


def test_where_a_package_has_the_unit_none_is_written_unless_it_runs_another_program(
    packaged: Packaged, capsys: pytest.CaptureFixture[str]
) -> None:
    assert packaged.install() == 1
    assert [*packaged.directory.iterdir()] == []
    assert capsys.readouterr().err.startswith(f"plugind: a package has installed the unit {packaged.unit}: name the ")
    assert packaged.install(*COMMAND) == 0
    assert contents(packaged.directory) == files("/usr/bin/plugind", ())


@pytest.mark.parametrize(("path", "is_service"), [("/run/plugind/status.sock", True), ("/nowhere/status.sock", False)])
def test_where_there_is_a_unit_a_missing_daemon_is_started_with_it(
    packaged: Packaged, path: str, is_service: bool
) -> None:
    missing = UnreachableError(path, "No such file or directory", errno.ENOENT)
    assert ("start the service with 'systemctl start plugind', or name" in unreachable(missing)) is is_service
    packaged.unit.unlink()
    assert "start one with 'plugind run', or name" in unreachable(missing)


def test_print_writes_nothing_and_names_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install(tmp_path, *ALL, "--print") == 0
    assert contents(tmp_path) == {}
    texts = files("/usr/bin/plugind", drop_ins())
    assert capsys.readouterr().out == "\n".join(f"# {tmp_path}/{name}\n{text}" for name, text in texts.items())


@pytest.mark.parametrize("path", ["/root/venv/bin/plugind", "/home/a/plugind", "/tmp/x/plugind", "/var/tmp/plugind"])
def test_a_program_that_the_service_does_not_see_is_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["install-unit", "--print", "--command", path]) == 78
    assert capsys.readouterr().err.startswith(f"plugind: the service could not run {path}, since it sees no files in ")


def test_the_service_runs_the_plugind_that_wrote_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/opt/plugind/bin/{name}")
    monkeypatch.setattr(sys, "argv", ["plugind"])
    assert commands.main(["install-unit", "--print"]) == 0
    assert "\nExecStart=/opt/plugind/bin/plugind run $PLUGIND_OPTIONS\n" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["/usr/lib/python3/dist-packages/plugind/__main__.py"])
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    assert commands.main(["install-unit", "--print"]) == 0
    assert "\nExecStart=/usr/bin/python3 -P -m plugind run $PLUGIND_OPTIONS\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("/usr/bin/plugind", "/usr/bin/plugind"),
        ("/opt/my plugins/plugind", '"/opt/my plugins/plugind"'),
        ("/opt/100%/$HOME", "/opt/100%%/$$HOME"),
        ('/opt/a"b\\c', '"/opt/a\\"b\\\\c"'),
        ("", '""'),
    ],
)
def test_a_word_is_quoted_as_systemd_reads_it(word: str, line: str) -> None:
    assert quoted(word) == line
