"""Sends signals to the running service, through the database's own log. They ask the service to repair the drift in a
report, as the policy for drift says.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from changelog.connectors.config import Config
from changelog.connectors.wiring.sources import database
from changelog.envelope.signal import Signal, divide
from changelog.spark_jobs.drift.report import repaired
from changelog.spark_jobs.drift.report_json import KEYS_NAME
from changelog.spark_jobs.drift.summary import time_text


class _Line(msgspec.Struct):
    entity: str
    key: str


_decoder = msgspec.json.Decoder(_Line)


def repair(config: Config, report: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Sends a signal `republish` or `rebuild` for each entity for which the report names this action.

    If the keys do not fit into one signal, sends several. Returns the report with the ids of the signals.
    """
    new_report = dict(report)
    source = database(config)
    keys = folder / report["run"]["id"] / KEYS_NAME
    for name, entity in report["entities"].items():
        signals = list(_signals(report["run"]["id"], config.name, name, entity["action"]["do"], keys))
        if signals:
            source.send_signals(signals)
            new_report = repaired(new_report, name, [signal.id for signal in signals], time_text(datetime.now(UTC)))
    return new_report


def _signals(run: str, service: str, entity: str, do: str, keys: Path) -> Iterator[Signal]:
    """Yields the signals for an entity. Their ids are made from the id of the run. So if the same report is repaired
    twice, the signals have the same ids, and the service obeys each of them only once.
    """
    prefix = f"drift-{run}-{entity}"[:90]
    match do:
        case "republish":
            for number, entity_keys in enumerate(divide(_keys_of(keys, entity))):
                yield Signal(do="republish", id=f"{prefix}-{number}", entity=entity, keys=entity_keys, service=service)
        case "rebuild":
            yield Signal(do="rebuild", id=prefix, entity=entity, service=service)


def _keys_of(keys: Path, entity: str) -> Iterator[str]:
    with keys.open("rb") as lines:
        for text in lines:
            line = _decoder.decode(text)
            if line.entity == entity:
                yield line.key
