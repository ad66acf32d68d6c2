"""The Prometheus rules and the Grafana board ask only for what the API's metrics have."""

import json
import re
from pathlib import Path

import yaml

from jobs.domain.lanes import LANES
from tests.exposed_metrics import exposed

DEPLOY = Path(__file__).parents[2] / "deploy"
SELECTOR = re.compile(r"(trilane_\w+)(?:\{([^}]*)\})?")


def alerts() -> dict[str, str]:
    """The expression of each alert."""
    groups = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def board() -> list[str]:
    """The expressions of the Grafana board."""
    panels = json.loads((DEPLOY / "grafana/trilane.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def check(expression: str) -> None:
    """Every selector names a metric, and every equality in it a label's value, that there is."""
    metrics = exposed()
    for name, matchers in SELECTOR.findall(expression):
        assert name in metrics, name
        for label, value in re.findall(r'(\w+)="([^"]*)"', matchers):
            assert value in metrics[name][label], f"{name}{{{label}={value!r}}}"
    for labels in re.findall(r"by \(([\w, ]+)\)", expression):
        known = {label for name, _ in SELECTOR.findall(expression) for label in metrics[name]}
        assert set(labels.split(", ")) <= known, labels


def test_alerts_ask_for_what_there_is() -> None:
    for expression in alerts().values():
        check(expression)


def test_the_board_asks_for_what_there_is() -> None:
    assert board()
    for expression in board():
        check(expression)


def test_alerts_hold_the_lanes_objectives() -> None:
    objectives = {
        name: policy.objective_ms / 1_000 for name, policy in LANES.items() if policy.objective_ms is not None
    }
    for alert in ("TrilaneWaitOverObjective", "TrilaneLatencyOverObjective"):
        held = re.findall(r'lane="(\w+)"[^>]*> ([0-9.]+)', alerts()[alert])
        assert {lane: float(bound) for lane, bound in held} == objectives


def test_prometheus_reads_the_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    assert [(DEPLOY / "prometheus" / file).is_file() for file in config["rule_files"]] == [True]
    assert config["scrape_configs"][0]["job_name"] in alerts()["TrilaneApiAway"]
