"""Has Debian's Slurm give jobs the devices of three nodes on this machine, while parts of it are killed.

    python -m tests.tools.slurm_nodes                         both ways, about five minutes
    python -m tests.tools.slurm_nodes --way count --only nodes_lost

Each node has a plugind and a fake device plugin with four devices. With the way ``ids`` Slurm chooses the devices, and
confines jobs to them where this machine has cgroups for it; with ``count`` it only counts. At the end no device was
leased to two jobs at once, and nothing is leased.

It needs root and the Debian packages slurmctld, slurmd, slurm-client and munge. It starts daemons of its own in
namespaces of its own, with their own processes and network, so none outlives it, however it ends; it changes no service
of the machine. Lines about its progress are written to standard error.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from plugind.benchmarks.peers.slurm.cgroups import can_confine
from plugind.benchmarks.peers.slurm.files import Way
from plugind.benchmarks.peers.slurm.namespaces import TOO_LONG, lacking, run_isolated
from plugind.tests.end_to_end.slurm_campaign import ALL, BY_NAME, CampaignError, campaign

_MODULE: Final = "plugind.tests.tools.slurm_nodes"
_RESULT: Final = "result.json"
_WAYS: Final = tuple(way.value for way in Way)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--way", choices=_WAYS, help="who chooses the devices (default: both ways, one after the other)"
    )
    parser.add_argument("--only", choices=sorted(BY_NAME), nargs="+", metavar="CASE", help=f"of {', '.join(BY_NAME)}")
    parser.add_argument("--within", type=float, default=480.0, help="seconds for each way (default 480)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the files and logs in this new directory")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    # What the namespaces run: one way, in this directory.
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Try everything once; return 0, 1 if something was wrong, or 2 if it cannot be tried here."""
    args = _parser().parse_args(words)
    if args.inside is not None:
        return _inside(args)
    if lacks := lacking():
        print(f"this needs root, and Debian's Slurm: {lacks}", file=sys.stderr)
        return 2
    results = []
    for way in _WAYS if args.way is None else (args.way,):
        result = _outside(args, way)
        if result is None:
            return 1
        results.append(result)
    print(json.dumps({"ways": results}, indent=2) if args.output == "json" else "\n".join(map(_words, results)))
    return 0


def _outside(args: argparse.Namespace, way: str) -> dict[str, object] | None:
    """Try one way in namespaces of its own; return what was found, or None if something was wrong."""
    scratch = Path(tempfile.mkdtemp(prefix="plugind-slurm-")) if args.keep is None else args.keep.resolve() / way
    scratch.mkdir(parents=True, exist_ok=True)
    only = ["--only", *args.only] if args.only else []
    try:
        code = run_isolated(_MODULE, ["--inside", str(scratch), "--way", way, *only], args.within)
        if code == TOO_LONG:
            print(f"{way}: not done within {args.within:g} s", file=sys.stderr)
        return json.loads((scratch / _RESULT).read_text()) if not code else None
    finally:
        if args.keep is None:
            shutil.rmtree(scratch)


def _words(result: dict[str, object]) -> str:
    judged = result["judged"]
    assert isinstance(judged, dict)
    confined = "confined to" if judged["confined"] else "not confined to"
    return (
        f"{judged['way']}: {judged['jobs']} jobs with {judged['tasks']} tasks, {confined} their devices, had"
        f" {judged['devices']} devices; no device was leased to two at once, and nothing is leased"
    )


def _inside(args: argparse.Namespace) -> int:
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)

    way = Way(args.way)
    cases = ALL if args.only is None else [BY_NAME[name] for name in args.only]
    try:
        tried, judged = campaign(args.inside, way, cases, say, confined=way is Way.IDS and can_confine())
    except CampaignError as error:
        print(error, file=sys.stderr)
        return 1
    result = {"judged": attrs.asdict(judged), "cases": [attrs.asdict(case) for case in tried]}
    (args.inside / _RESULT).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
