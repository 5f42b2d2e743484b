"""Tests the action and the verdict that a report gives for each kind of drift."""

from pathlib import Path
from typing import Any

import pytest

from changelog.spark_jobs.drift.report import Policy, finish
from tests.unit.drift.reports import entity, report, skipped

MANY: dict[str, Any] = {"changed": 1001, "sourceRows": 1000}
NOTED = {"note": "added with a default at 00000001/0000000001781838/00000006"}


@pytest.mark.parametrize(
    ("order", "policy", "do", "verdict", "run"),
    [
        (entity(), {}, "none", "clean", "clean"),
        (skipped(why="not asked for"), {}, "none", "skipped", "clean"),
        (entity(changed=1), {}, "republish", "drift", "drift"),
        (entity(missing=400, extra=300, changed=300), {}, "republish", "drift", "drift"),
        (entity(changed=1000, columns={"amount": 949}), {"rebuild_ppm": 1}, "republish", "drift", "drift"),
        (entity(changed=1000, columns={"amount": 950}), {"rebuild_ppm": 1}, "rebuild", "drift", "drift"),
        (entity(changed=1000, columns={"amount": 950}), {"rebuild_ppm": 950}, "republish", "drift", "drift"),
        (
            entity(changed=1000, columns={"amount": 1000}),
            {"rebuild_ppm": 1, "rebuild_columns": False},
            "republish",
            "drift",
            "drift",
        ),
        (entity(changed=99, sourceRows=10_000, columns={"amount": 99}), {}, "republish", "drift", "drift"),
        (entity(changed=100, sourceRows=10_000, columns={"amount": 100}), {}, "rebuild", "drift", "drift"),
        (entity(changed=1001), {}, "rebuild", "drift", "drift"),
        (entity(changed=1001, sourceRows=1_001_000), {}, "stop", "severe", "severe"),
        (entity(changed=0), {"republish_keys_max": 0, "rebuild_ppm": 0}, "none", "clean", "clean"),
        (entity(changed=1), {"republish_keys_max": 0, "rebuild_ppm": 0}, "rebuild", "drift", "drift"),
        (entity(changed=10_000), {}, "rebuild", "drift", "drift"),
        (entity(changed=10_001), {}, "rebuild", "severe", "severe"),
        (entity(extra=1, sourceRows=0), {}, "republish", "drift", "drift"),
        (entity(changed=1, sourceRows=59), {}, "republish", "drift", "drift"),
        (entity(changed=1001, sourceRows=59_000), {}, "rebuild", "severe", "severe"),
        (entity(schemaChanged=NOTED), {}, "stop", "schema changed", "severe"),
        (entity(schemaChanged=NOTED), {"on_schema_mismatch": "rebuild"}, "rebuild", "schema changed", "drift"),
        (entity(schemaChanged=NOTED), {"on_schema_mismatch": "ignore"}, "none", "clean", "clean"),
        (entity(schemaChanged=NOTED, changed=2), {"on_schema_mismatch": "ignore"}, "republish", "drift", "drift"),
        (entity(schemaChanged=NOTED, changed=2), {}, "stop", "schema changed", "severe"),
        (entity(schemaChanged=NOTED, **MANY), {}, "stop", "severe", "severe"),
        (entity(verdict="schema changed"), {}, "stop", "schema changed", "severe"),
    ],
)
def test_a_report_gets_an_action_and_verdicts(order: Any, policy: Any, do: str, verdict: str, run: str) -> None:
    finished = finish(report(entities={"order": order}), {"order": Policy(**policy)}, [])
    finished_order = finished["entities"]["order"]
    assert (finished_order["action"]["do"], finished_order["verdict"], finished["verdict"]) == (do, verdict, run)
    assert finished_order["action"]["why"]


def test_the_verdict_of_a_run_is_that_of_its_worst_entity() -> None:
    entities = {"order": entity(), "guest": entity(changed=1), "event": entity(changed=20_000)}
    assert finish(report(entities=entities), {}, [])["verdict"] == "severe"
    del entities["event"]
    assert finish(report(entities=entities), {}, [])["verdict"] == "drift"


@pytest.mark.parametrize("verdict", ["not caught up", "refused"])
def test_a_run_that_could_not_compare_keeps_its_verdict(verdict: str) -> None:
    finished = finish(report(entities={"order": skipped()}, verdict=verdict), {}, [])
    assert finished["verdict"] == verdict


def test_each_entity_has_its_own_policy() -> None:
    entities = {"order": entity(changed=5), "guest": entity(changed=5)}
    finished = finish(report(entities=entities), {"guest": Policy(republish_keys_max=4, rebuild_ppm=0)}, [])
    assert [entity_report["action"]["do"] for entity_report in finished["entities"].values()] == [
        "republish",
        "rebuild",
    ]


def test_the_command_names_the_configuration() -> None:
    entities = {"order": entity(changed=5), "guest": entity(schemaChanged=NOTED)}
    finished = finish(report(entities=entities), {}, [], config=Path("/etc/the changelog.toml"))
    commands = {name: entity_report["action"]["command"] for name, entity_report in finished["entities"].items()}
    assert commands["guest"] == "changelog rebuild guest --config '/etc/the changelog.toml'"
    assert commands["order"].startswith("changelog republish order --config '/etc/the changelog.toml' --report ")


def test_finish_does_not_change_its_argument() -> None:
    unfinished = report(entities={"order": entity(changed=5)})
    finish(unfinished, {}, [])
    assert unfinished == report(entities={"order": entity(changed=5)})
