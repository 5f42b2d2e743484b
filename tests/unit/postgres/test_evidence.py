"""Tests how two readings of the catalogue are compared.

The comparison finds out which tables were changed in between. For each change, it finds two positions in the log
between which the change was made.
"""

import json
from dataclasses import replace

import pytest

from changelog.connectors.sources.postgres.admin.ddl import Statements
from changelog.connectors.sources.postgres.admin.evidence import (
    LEAVES_MAX,
    Evidence,
    LeafEvidence,
    TableEvidence,
    Unlogged,
    unlogged,
)
from changelog.envelope.errors import ChangelogError, Kind

TABLE = TableEvidence(
    oid=1,
    name="700",
    owner=10,
    options="2.700",
    publisher=10,
    published=frozenset({"3.700"}),
    keys=frozenset({"c4"}),
    types=("23.-1",),
    leaves={},
)


def evidence(table: TableEvidence, lsn: int = 100) -> Evidence:
    return Evidence(lsn=lsn, horizon=900, tables={"item": table})


def partitioned(count: int) -> TableEvidence:
    return replace(TABLE, leaves={oid: LeafEvidence(filenode=oid, links="700") for oid in range(1, count + 1)})


@pytest.mark.parametrize("count", [0, LEAVES_MAX, LEAVES_MAX + 1])
def test_evidence_that_was_stored_can_be_compared(count: int) -> None:
    table = partitioned(count)
    stored = Evidence.parse(evidence(table).to_json())
    assert stored is not None
    assert isinstance(stored.tables["item"].leaves, str) == (count > LEAVES_MAX)
    assert list(unlogged(stored, evidence(table))) == []
    [change] = unlogged(stored, evidence(partitioned(count + 1)))
    assert change.leaves == (None if count > LEAVES_MAX else {count + 1})
    assert (change.since, change.sweep) == (100, count > LEAVES_MAX)


def test_empty_evidence_is_accepted_and_malformed_evidence_is_refused() -> None:
    assert Evidence.parse({}) is None
    with pytest.raises(ChangelogError) as caught:
        Evidence.parse({"lsn": "0/0", "horizon": 1, "tables": {"item": [1]}})
    assert caught.value.kind is Kind.MALFORMED


@pytest.mark.parametrize(
    ("now", "noticed"),
    [
        (replace(TABLE, options="2.800", publisher=11), False),
        (replace(TABLE, options="5.800", publisher=11), True),
        (replace(TABLE, published=frozenset({"3.700", "9.800"})), False),
        (replace(TABLE, types=("20.-1",), keys=frozenset({"c9"})), False),
        (replace(TABLE, types=("25.-1",), keys=frozenset({"c9"})), True),
        (replace(TABLE, keys=frozenset({"c4", "i9"})), False),
        (replace(TABLE, name="800", owner=11), False),
    ],
)
def test_an_edit_is_noticed_if_it_may_hide_changes(now: TableEvidence, noticed: bool) -> None:
    assert bool(list(unlogged(evidence(TABLE), evidence(now)))) == noticed


def test_a_change_was_made_between_the_statements_that_may_have_made_it() -> None:
    change = Unlogged(
        entity="item", why="edited", statements=["PUBLICATION"], leaves=None, sweep=True, since=0x100, until=0x200
    )
    statements = Statements()
    for content in (b"", b"\xff", b"[]", b"1", b'{"command": 1}', b'{"command": "ALTER TABLE"}'):
        statements.add(content, 0x150)
    assert statements.bounds(change) == ("0/100", "0/200")
    for commit in (0x90, 0x110, 0x120, 0x210):
        statements.add(b'{"command": "ALTER PUBLICATION", "objects": []}', commit)
    assert statements.bounds(change) == ("0/110", "0/120")


@pytest.mark.parametrize(
    ("now", "command", "other"),
    [
        (replace(TABLE, types=("25.-1",)), "ALTER TYPE", "ALTER PUBLICATION"),
        (replace(TABLE, types=("25.-1",)), "ALTER TABLE", "DROP OWNED"),
        (replace(TABLE, name="800"), "ALTER SCHEMA", "ALTER TYPE"),
        (replace(TABLE, options="5.800", publisher=11), "DROP OWNED", "ALTER TABLE"),
    ],
)
def test_only_commands_that_can_make_a_change_are_taken_for_its_cause(
    now: TableEvidence, command: str, other: str
) -> None:
    [change] = unlogged(evidence(TABLE), evidence(now))
    statements = Statements()
    for name, commit in ((other, 0x110), (command, 0x120), (other, 0x130)):
        statements.add(json.dumps({"command": name}).encode(), commit)
    assert statements.bounds(replace(change, since=0x100, until=0x200)) == ("0/120", "0/120")
