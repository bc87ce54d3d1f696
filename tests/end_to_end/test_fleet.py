"""A small fleet under Debian's Prometheus and Alertmanager; ``python -m tests.tools.fleet`` has one of 50 nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plugind.tests.end_to_end.fleet import campaign, inventory
from plugind.tests.end_to_end.packages import program
from plugind.tests.end_to_end.promtool import DEPLOY, promtool

pytestmark = pytest.mark.extended

PAGE = (DEPLOY.parent / "docs" / "fleet.md").read_text()


async def test_alerts_fire_for_the_nodes_whose_driver_is_killed_and_end_when_it_runs_again(tmp_path: Path) -> None:
    for server in ("prometheus", "prometheus-alertmanager"):
        program(server)
    said: list[str] = []
    await campaign(tmp_path, nodes=3, broken=[1], say=said.append)
    assert said[-2] == "PlugindExpectedPluginMissing has ended for node-01"


async def test_the_inventories_of_nodes_say_where_a_device_is_who_has_it_and_what_is_unwell(tmp_path: Path) -> None:
    program("jq")
    said: list[str] = []
    await inventory(tmp_path, nodes=3, broken=1, say=said.append)
    assert said[-1].startswith("gpu-1 is on 3 nodes, and node-00 has leased it; unwell: node-00\t")


def test_the_pieces_of_a_configuration_on_the_page_are_valid(tmp_path: Path) -> None:
    head = "scrape_configs:\n  - job_name: plugind\n    scrape_interval: 30s\n"
    pieces = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(pieces) == 2
    # Debian's Prometheus does not discover pods.
    discovery = "    kubernetes_sd_configs:\n      - role: pod\n        namespaces: {names: [kube-system]}\n"
    pieces = [piece.replace(discovery, "    static_configs: []\n") for piece in pieces]
    for number, piece in enumerate(pieces):
        (path := tmp_path / f"{number}.yml").write_text(head + piece)
        code, said = promtool("check", "config", str(path))
        assert code == 0, said


def test_the_page_asks_for_series_that_the_rules_make() -> None:
    asked = set(re.findall(r"\b\w+:plugind_\w+:\w+", PAGE))
    made = set(re.findall(r"record: (\S+)", (DEPLOY / "prometheus" / "plugind.records.yml").read_text()))
    assert asked <= made
    assert len(asked) > 5
