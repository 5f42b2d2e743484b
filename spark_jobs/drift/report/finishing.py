"""Completes the report of a comparison: adds what the policy decides, and the history of drift in earlier runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from changelog.spark_jobs.drift.report.history import histories, trend
from changelog.spark_jobs.drift.report.policy import Policy, command, decide, entity_verdict, run_verdict
from changelog.spark_jobs.drift.report.writing import JSON_NAME

JSON = dict[str, Any]


def finish(
    report: Mapping[str, Any],
    policy: Mapping[str, Policy],
    earlier: Sequence[Mapping[str, Any]],
    *,
    folder: Path | None = None,
    config: Path | None = None,
) -> JSON:
    """Returns the report with `action`, `history`, `trend` and the policy's verdicts; `report` itself is not changed.

    `policy` has the policies of entities; the default policy applies to all other entities. `earlier` has the reports
    of earlier runs, the oldest first. `folder` is the folder of all reports. For this run and for earlier runs, it
    already has files with the drifted keys, RUN_ID/keys.jsonl, from which the history is computed. `config` is the path
    of the configuration, for the commands that the report shows. Raises ChangelogError (MALFORMED) if a file of keys is
    damaged.
    """
    path = (folder or Path()) / report["run"]["id"] / JSON_NAME
    entities: dict[str, JSON] = {}
    for name, facts in report["entities"].items():
        own = policy.get(name, Policy())
        decision = decide(facts, own)
        entities[name] = {
            **facts,
            "repaired": facts.get("repaired"),
            "verdict": entity_verdict(facts, decision, own),
            "action": {
                "do": decision.do,
                "why": decision.why,
                "command": command(facts, name, decision, path, config),
            },
        }
    finished_report = {**report, "entities": entities, "verdict": run_verdict(report["verdict"], entities.values())}
    runs = [*(run for run in earlier if run["run"]["id"] != finished_report["run"]["id"]), finished_report]
    counted = histories(runs, folder)
    for name, entity in entities.items():
        entity["history"] = counted[name]
        entity["trend"] = trend(name, runs)
    return finished_report


def repaired(report: Mapping[str, Any], entity: str, signals: Sequence[str], at: str) -> JSON:
    """Returns the report with the signals that the run sent for an entity at the time `at`. In the entity's history,
    open keys become republished.
    """
    entity_report = report["entities"][entity]
    history = entity_report["history"]
    new_history = {**history, "open": 0, "republished": history["open"] + history["republished"]}
    new_report = {**entity_report, "repaired": {"signals": list(signals), "at": at}, "history": new_history}
    return {**report, "entities": {**report["entities"], entity: new_report}}
