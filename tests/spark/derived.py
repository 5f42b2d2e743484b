"""Helps to test the job `derive_deltas`: writes a configuration for the job, and rebuilds tables from its deltas.

A *delta* describes, as a patch, what one change did to its row.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from changelog.envelope.canonical import text_of
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.delta import Delta, fold
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import MISSING, Record
from changelog.envelope.position import Position, commit_text

CONFIG = """
name = "booking"
source = {{ kind = "postgres", dsn = "postgresql://nowhere" }}
tables = {{ include = ["*"] }}
sink = {sink}
"""


def config(folder: Path, sink: str) -> Path:
    file = folder / "changelog.toml"
    file.write_text(CONFIG.format(sink=sink), "utf-8")
    return file


def checkpoint(records: list[Record]) -> Checkpoint:
    last = records[-1].envelope.provenance.source.position
    return Checkpoint(position=last, through=commit_text(last.commit), epoch=1)


def tables(deltas: Iterable[tuple[str, str, Delta]]) -> dict[str, dict[str, Any]]:
    """Rebuilds the tables from triples (entity, key, delta). Returns the rows by entity and key.

    The deltas of each partition must come in the order of their positions, because a truncate applies only to the keys
    that came before it. A delta may come twice.
    """
    by_key: dict[tuple[str, str], list[Delta]] = defaultdict(list)
    for entity, key, delta in deltas:
        if key == TRUNCATE_KEY:
            for (other_entity, _), history in by_key.items():
                if other_entity == entity:
                    history.append(delta)
        else:
            by_key[entity, key].append(delta)
    states = {entity_and_key: fold(sorted(history, key=position)) for entity_and_key, history in by_key.items()}
    return {
        entity: {
            key: state for (entity_name, key), state in states.items() if entity_name == entity and state is not MISSING
        }
        for entity in ("order", "guest")
    }


def position(delta: Delta) -> Position:
    return delta.provenance.source.position


def same(a: Any, b: Any) -> bool:
    return text_of(a) == text_of(b)


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return document
