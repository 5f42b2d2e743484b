"""Decides what to do about drift, as the options in `[drift]` of the configuration say. For the entity X, options in
`[entities.X.drift]` take precedence.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from changelog.connectors.config import Config

Do = Literal["none", "republish", "rebuild", "stop"]

NEARLY_ALL = 0.95
"""A column counts as wrong as a whole only if it differs in at least this share of the drifted rows."""

COLUMN_ROWS_MIN = 100
"""A column counts as wrong as a whole only if it differs in at least this many rows."""

MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The options in `[drift]`. In their names, `ppm` means drifted keys per million rows of the source."""

    republish_keys_max: int = 1000
    rebuild_ppm: float = 1000.0
    rebuild_columns: bool = True
    severe_ppm: float = 10_000.0
    on_schema_mismatch: Literal["stop", "rebuild", "ignore"] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, and the reason in words."""

    do: Do
    why: str


def policies(config: Config, entities: Iterable[str]) -> dict[str, Policy]:
    """Returns the policy of each of these entities."""
    return {name: Policy(**config.drift_of(name).model_dump()) for name in entities}


def decide(entity: Mapping[str, Any], policy: Policy) -> Decision:
    """Decides what to do about one entity of a report.

    There are rules for these cases, in this order: the schema changed; a column is wrong as a whole; few keys drifted;
    a large share of the rows drifted. The first rule that applies decides. If none applies, many keys of a very large
    table drifted, and a person must decide.
    """
    drifted = entity["drifted"]
    if drifted is None:
        return Decision(do="none", why="it was not compared")
    if mismatched(entity) and policy.on_schema_mismatch != "ignore":
        return Decision(do=policy.on_schema_mismatch, why=f"the schema changed: {_listed(entity['schemaChanged'])}")
    if drifted == 0:
        return Decision(do="none", why="nothing drifted")
    share = f"{_rate(entity['ppm'])} in a million rows"
    column = _whole_column(entity, policy)
    if column is not None:
        return Decision(do="rebuild", why=f"{column} differs in {entity['columns'][column]:,} of {_keys(drifted)}")
    if drifted <= policy.republish_keys_max:
        limit = f"republish_keys_max = {policy.republish_keys_max}"
        return Decision(do="republish", why=f"{_keys(drifted)}, not more than {limit}")
    if entity["ppm"] > policy.rebuild_ppm:
        limit = f"rebuild_ppm = {_rate(policy.rebuild_ppm)}"
        return Decision(do="rebuild", why=f"{_keys(drifted)} are {share}, more than {limit}")
    excess = f"more than republish_keys_max = {policy.republish_keys_max}"
    return Decision(do="stop", why=f"{_keys(drifted)} are {excess}, but only {share}: a person decides")


def mismatched(entity: Mapping[str, Any]) -> bool:
    """Returns whether a change of the table's columns also altered values in rows, although the database's log has no
    change of these rows.
    """
    return bool(entity["schemaChanged"]) or entity["verdict"] == "schema changed"


def command(
    entity: Mapping[str, Any], name: str, decision: Decision, report: Path, config: Path | None = None
) -> str | None:
    """Returns the command that carries out the decision; for a stop, the command that a person may choose to run.

    Returns None if nothing is to be done. `report` and `config` are the paths of the report and of the configuration.
    """
    arguments = f"{name} --config {shlex.quote(str(config))}" if config else name
    if decision.do == "rebuild" or (decision.do == "stop" and mismatched(entity)):
        return f"changelog rebuild {arguments}"
    if decision.do in ("republish", "stop"):
        return f"changelog republish {arguments} --report {shlex.quote(str(report))}"
    return None


def entity_verdict(entity: Mapping[str, Any], decision: Decision, policy: Policy) -> str:
    """Returns the verdict that the policy gives to an entity. Drift that a republish repairs is never severe."""
    verdict = str(entity["verdict"])
    if entity["drifted"] is None or verdict == "skipped":
        return verdict
    if entity["ppm"] > policy.severe_ppm and decision.do != "republish":
        return "severe"
    if mismatched(entity) and policy.on_schema_mismatch != "ignore":
        return "schema changed"
    if not entity["drifted"]:
        return "clean"
    return "severe" if decision.do == "stop" else "drift"


def run_verdict(verdict: str, entities: Iterable[Mapping[str, Any]]) -> str:
    """Returns the run's verdict, which follows from the `verdict` and the `action` of its entities.

    If the run could not compare, its verdict stays `verdict`.
    """
    if verdict in ("not caught up", "refused"):
        return verdict
    entity_list = list(entities)
    if any(entity["verdict"] == "severe" or entity["action"]["do"] == "stop" for entity in entity_list):
        return "severe"
    return "drift" if any(entity["verdict"] in ("drift", "schema changed") for entity in entity_list) else "clean"


def _whole_column(entity: Mapping[str, Any], policy: Policy) -> str | None:
    """Returns the column that is wrong as a whole; None if there is none, or if the policy ignores columns."""
    if not policy.rebuild_columns or not entity["columns"]:
        return None
    name, rows = max(entity["columns"].items(), key=lambda pair: pair[1])
    above_limit = rows * MILLION > policy.rebuild_ppm * max(entity["sourceRows"], 1)
    return name if rows >= max(NEARLY_ALL * entity["drifted"], COLUMN_ROWS_MIN) and above_limit else None


def _keys(count: int) -> str:
    return f"{count:,} key{'' if count == 1 else 's'}"


def _rate(ppm: float) -> str:
    return f"{ppm:,.0f}" if ppm >= 10 else f"{ppm:.2g}"


def _listed(columns: Mapping[str, str]) -> str:
    return "; ".join(f"{name} ({how})" for name, how in columns.items()) or "see the entity"
