"""Prometheus' own tool, for the tests of the rules in ``deploy/prometheus`` and the dashboard in ``deploy/grafana``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.processes import finish

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "plugind.alerts.yml"
RECORDS = DEPLOY / "prometheus" / "plugind.records.yml"
#: What is no metric in an expression.
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left"})

#: A series: its name and labels, as they stand in an expression.
Series = str


@attrs.frozen
class Rule:
    """One rule of a file: an alert or a record."""

    name: str
    expression: str


def promtool(*arguments: str, stdin: str = "") -> tuple[int, str]:
    """Run promtool; return its exit code, and what it prints. Skip the test where it is missing."""
    command = [program("promtool"), *arguments]
    done = finish(command, stdin=stdin)
    return done.returncode, done.stdout + done.stderr


def rules(path: Path) -> list[Rule]:
    """Return the rules of a file that promtool has found valid, whose form is always the same."""
    text = re.sub(r"^ *#.*\n", "", path.read_text(), flags=re.MULTILINE)
    found = re.findall(r"^ +- (?:alert|record): (\S+)\n +expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", text, re.MULTILINE)
    assert len(found) == len(re.findall(r"^ +- (?:alert|record):", text, re.MULTILINE)), "each rule was read"
    return [Rule(name, " ".join(folded.split()) or plain) for name, folded, plain in found]


def metrics_in(expression: str) -> set[str]:
    """Return the names of the metrics of an expression."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', " ", expression)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    words = re.findall(r"(?<![\w.:])[a-zA-Z_:][\w:]*\b(?!\s*\()", bare)
    durations = re.compile(r"\d+[smhdw]")
    return {word for word in words if word not in _WORDS and durations.fullmatch(word) is None}


def exposed(text: str, labels: Mapping[str, str]) -> dict[Series, str]:
    """Return the samples of an exposition, with the labels that a scrape adds."""
    added = ",".join(f'{name}="{value}"' for name, value in labels.items())
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            name, _, rest = series.partition("{")
            samples[f"{name}{{{added}{',' + rest[:-1] if rest else ''}}}"] = value
    return samples


def stretched(scrapes: Sequence[tuple[int, Mapping[Series, str]]]) -> list[dict[str, str]]:
    """Return the series of scrapes, each of which is repeated for so many minutes, in the form of promtool.

    A series that a scrape lacks has ended, as for Prometheus.
    """
    series = dict.fromkeys(name for _, scrape in scrapes for name in scrape)
    return [
        {
            "series": name,
            "values": " ".join(
                f"{scrape[name]}+0x{minutes - 1}" if name in scrape else f"stale _x{minutes - 1}"
                for minutes, scrape in scrapes
            ),
        }
        for name in series
    ]


def expected(expression: str, minute: int, samples: Iterable[tuple[Series, float]]) -> dict[str, object]:
    """Return that an expression has exactly these samples at this minute, in the form of promtool."""
    listed = [{"labels": labels, "value": value} for labels, value in samples]
    return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": listed}


def assert_rules(directory: Path, groups: Sequence[Mapping[str, object]]) -> None:
    """Have promtool test the rules: each group has input series, an interval and what is expected."""
    tests = [{"interval": "1m", **group} for group in groups]
    path = directory / "rules_test.yml"
    # JSON is YAML, too.
    path.write_text(
        json.dumps({"rule_files": [str(ALERTS), str(RECORDS)], "evaluation_interval": "1m", "tests": tests})
    )
    code, said = promtool("test", "rules", str(path))
    assert code == 0, said
