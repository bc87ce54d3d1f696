"""What each command says of a command line that makes no sense, and its exit code."""

from __future__ import annotations

import shlex

import pytest

from plugind.actors.console.commands import main
from plugind.protocol.text import escaped
from plugind.tests.actors.console import snapshots

DEVICES = "--type DevicePlugin --name example.com/gpu"
CSI = "--type CSIPlugin --name n --socket /s"
OTHER = "--type T --name n"
SECONDS = ("0", "-5", "nan", "inf", "soon", "1e10")
RESOURCES = ("gpu", "gpu=2", "v.com/", "/gpu", "V.com/gpu", "kubernetes.io/cpu", "'a/\x1b'")
NUMBERS = (
    "''",
    "=2",
    "v.com/a=",
    "v.com/a=0",
    "v.com/a=-1",
    "v.com/a=x",
    "v.com/a=٣",
    "v.com/a=1000001",
    "v.com/a=1=2",
)

LINES = {
    "plugind": ["fly", "lss", "help lss"],
    "run": [
        "--rooot p",
        "--root ''",
        "--root /usr --root /usr/lib",
        "--status ''",
        "--device-plugins=/d --state ''",
        "--take-over-kubelet",
        *(f"--devices {text}" for text in ("lab/serial", "lab/serial=", "serial=/dev/ttyS0")),
        *(f"--rescan {text}" for text in SECONDS),
        "--trust-uid 9-8",
        "--trust-uid no-such-user",
        "--expect ''",
        "--expect 'a\tb'",
        *(f"--health {text}" for text in ("=off", "Colour=", "Colour=0", "on", "0.5")),
        *(f"--handler-timeout {text}" for text in ("=5", "Colour=", "Colour=0", "soon")),
        "--csi-refresh 9",
        "--csi-topology ignore",
        "--set timeouts.getinfo=2",
        *(f"--set timeouts.get_info{text}" for text in ("", "=0", "=x")),
        "--set timeouts=5",
        *(f"--lease-uids {text}" for text in ("nobody-here", "1000,", "0-70000", "4294967295")),
        *(f"--lease-group {text}" for text in ("no-group-here", "4294967295")),
        "--cdi-dir ''",
        *(f"--pool '{text}'" for text in ("lab", "=v.com/gpu", "a b=v.com/gpu", "lab=gpu", "lab=v.com/gpu:")),
        "--pool lab=v.com/gpu@nobody-here",
    ],
    "allocate": [
        "v.com/gpu=1",
        *(f"v.com/gpu=1 --ttl 5 {more}" for more in ("-- true", "--until-release", "--stop-on-unhealthy", "--confine")),
        "v.com/gpu=1 --start-within 10m --ttl 5",
        "v.com/gpu=1 --ttl 5 --for-user nobody-here",
        "v.com/gpu=1 -o json -- true",
        "v.com/gpu=1 --",
        *(f"{resources} -- true" for resources in ("", "v.com/gpu", "v.com/gpu=0", "v.com/gpu=1 v.com/gpu=2")),
        *(f"v.com/gpu=1 {option} -- true" for option in ("--ids a,", "--ids a --include b", "--label job")),
        "v.com/gpu=1 --owner 0",
        *(f"v.com/gpu=1 --ttl {text}" for text in ("0", "soon")),
        *(f"v.com/gpu=1 --wait={text} -- true" for text in ("''", "s", "-1", "nan", "1e400", "1w", "'1 h'", "99999d")),
    ],
    "leases": ["--none-held", "recover --none-held --watch"],
    "config": ["check /a --config=/b"],
    "ls": ["--status ''"],
    "describe": ["", "''", "a --status ''"],
    "watch": ["--status ''"],
    "wait": [
        "",
        "''",
        "a --status ''",
        *(f"a --timeout {text}" for text in SECONDS[1:]),
        "a --resource v.com/a",
        "--resource v.com/a --serving",
        *(f"--resource {text}" for text in (*NUMBERS, *RESOURCES)),
    ],
    "retry": ["''", "a --status ''"],
    "probe": ["a --status ''", *(f"a --timeout {text}" for text in SECONDS)],
    "devices": RESOURCES,
    "fake": [
        "--socket /s",
        OTHER,
        DEVICES,
        *(f"--socket /s {OTHER} --fail-get-info {text}" for text in ("-1", "many")),
        f"--socket /s {OTHER} --pre-start",
        f"--socket /s {OTHER} --devices 0",
        f"--socket /s {OTHER} --topology a=b",
        f"--socket /s {OTHER} --control /c",
        f"--socket /s {OTHER} --command 'hang probe'",
        f"--socket /s {DEVICES} --node-id a",
        f"--socket /s {DEVICES} --device a=/dev/null --device a=/dev/null",
        f"--socket /s {DEVICES} --device a=/nix",
        f"--socket /s {DEVICES} --device a",
        f"--socket /s {DEVICES} --device a/b=/dev/null",
        f"--socket /s {DEVICES} --devices -1",
        f"--socket /s {DEVICES} --numa 0,x",
        f"--socket /s {DEVICES} --env X",
        f"{DEVICES} --device-plugins=/d --fail-get-info 1",
        f"{DEVICES} --device-plugins=/d --hang notify",
        f"{DEVICES} --device-plugins=/d --socket /e/s",
        f"{DEVICES} --device-plugins=/d --socket /d/kubelet.sock",
        f"{DEVICES} --device-plugins=/d --version v1 --version v2",
        f"{CSI} --registrar-only",
        f"{CSI} --devices 2",
        f"{CSI} --serve v1.DRAResourceHealth",
    ],
}  # fmt: skip


def test_what_is_said_of_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Fault 91 and behaviour 40: the texts are escaped, and no name is expected that no plugin can have."""
    said: dict[str, list[str]] = {}
    for command, lines in LINES.items():
        for line in lines:
            typed = ("plugind " if command == "plugind" else f"plugind {command} ") + line
            try:
                code: object = main(shlex.split(typed)[1:])
            except SystemExit as end:
                code = end.code
            assert code == 125 if command == "allocate" and "--" in shlex.split(line) else code in (2, 78), line
            said.setdefault(command, []).append(f"$ {escaped(typed).rstrip()}\n  {code}: {last_line(capsys)}")
    snapshots.check("wrong-usage", said)


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr()
    assert printed.out == ""
    # Each version of argparse lists the choices in its own way.
    return printed.err.splitlines()[-1].partition(" (choose from")[0]
