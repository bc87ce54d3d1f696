"""Plays random scripts to plugind and to the kubelet's own plugin manager, and names what no rule allows.

    python -m tests.tools.differential --seeds 0..1999
    python -m tests.tools.differential --seeds 41..41 --shrink

Both see the same plugins and files, each in a directory of its own. A script takes some twenty seconds, in which both
mostly wait, so many are played side by side. Each difference is printed with the rule of docs/rules.md that allows it,
if it is of a script with one that no rule allows; the command fails then. It needs Go (see tests.tools.peers).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import attrs
import trio

from plugind.tests.differential.acts import Act, Script, script
from plugind.tests.differential.compare import Difference, compare_all
from plugind.tests.tools import peers


def shown(act: Act) -> str:
    """Return an act in one line."""
    plugin = act.plugin
    who = f"{plugin.name} ({plugin.type}, {plugin.verdict}, {plugin.seconds:g} s)" if plugin is not None else ""
    return " ".join(filter(None, (f"{act.after:5g} s", act.kind, act.path, act.to, who)))


def show(played: Script, found: Sequence[Difference]) -> None:
    """Print a script, and in what the managers differ."""
    print(f"seed {played.seed}, {'paced' if played.paced else 'not paced'}")
    for act in played.before:
        print(f"  before the start  {shown(act)}")
    for number, act in enumerate(played.acts, 1):
        print(f"  act {number:<2}            {shown(act)}")
    for difference in found:
        print(difference, flush=True)


async def shrunk(whole: Script, kubelet: str) -> Script:
    """Return the fewest acts of a script after which there still is a difference that no rule allows."""
    while True:
        still: list[Script] = []

        def keep(part: Script, found: Sequence[Difference], still: list[Script] = still) -> None:
            if is_red(found):
                still.append(part)

        await compare_all(_parts(whole), kubelet, keep)
        if not still:
            return whole
        whole = still[0]


def _parts(whole: Script) -> Iterator[Script]:
    """Yield the script without each of its acts."""
    for number in range(len(whole.before)):
        yield attrs.evolve(whole, before=whole.before[:number] + whole.before[number + 1 :])
    for number in range(len(whole.acts)):
        yield attrs.evolve(whole, acts=whole.acts[:number] + whole.acts[number + 1 :])


def is_red(found: Iterable[Difference]) -> bool:
    """Return whether no rule allows one of the differences."""
    return any(difference.rule is None for difference in found)


async def campaign(seeds: range, side_by_side: int, *, shrink: bool) -> int:
    """Play the scripts of ``seeds``; return how many have a difference that no rule allows."""
    kubelet = str(peers.built(peers.PEERS / "kubelet-pm", lambda line: print(line, file=sys.stderr)))
    began, rules, red = time.monotonic(), Counter[str](), list[Script]()

    def count(played: Script, found: Sequence[Difference]) -> None:
        rules.update(one.rule for one in found if one.rule is not None)
        if is_red(found):
            red.append(played)
            show(played, found)

    await compare_all(map(script, seeds), kubelet, count, side_by_side=side_by_side)
    allowed = ", ".join(f"{rule} {times} times" for rule, times in sorted(rules.items())) or "none"
    print(f"{len(seeds)} scripts in {time.monotonic() - began:.0f} s; differences that rules allow: {allowed}")
    print(f"{len(red)} scripts with a difference that no rule allows")
    for played in red if shrink else ():
        print("the fewest acts of")
        show(await shrunk(played, kubelet), ())
    return len(red)


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0..1999", metavar="A..B", help="the seeds of the scripts (default 0..1999)")
    parser.add_argument("--side-by-side", type=int, default=30, metavar="N", help="scripts at a time (default 30)")
    parser.add_argument("--shrink", action="store_true", help="search for the fewest acts that still differ")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    sys.exit(1 if trio.run(partial(campaign, seeds, arguments.side_by_side, shrink=arguments.shrink)) else 0)


if __name__ == "__main__":
    main()
