"""Tests what the service publishes for Debezium's events. The events are in memory, and the rows go to a file log."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import structlog

from changelog.connectors.findings import Finding
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources import ChangelogEnd
from changelog.connectors.sources.debezium.database import DebeziumDatabase
from changelog.connectors.sources.debezium.decode.events import SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.envelope.columnar import batch
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import Signal
from tests.unit.debezium.change_events import event, key_header, stamp, tombstone, truncate
from tests.unit.debezium.memory import App, Topics, entity

ITEM = ("public", "item")
A, B, C = ({"id": 1, "status": status} for status in "abc")


def app(
    path: Path,
    *messages: SourceRecord,
    entities: Sequence[Entity] = (),
    parts: Mapping[str, Sequence[SourceRecord]] | None = None,
) -> App:
    topics = Topics(parts or {"app.public.item/0": messages}, Random(1), at_once=True)
    return App(topics, path / "log", entities or [entity("item")])


def published(app: App, name: str | None = "item") -> list[tuple[str, str, Any, Any]]:
    """Returns the op, the key, the current row and the original row of each message."""
    messages = [message for message in app.messages(name) if message["entity"] != "schemas"]
    return [
        (
            message["value"]["provenance"]["source"]["op"],
            message["key"],
            message["value"]["current"],
            message["value"].get("original", "unknown"),
        )
        for message in messages
    ]


def commits(app: App) -> list[tuple[str, str]]:
    """Returns the transaction and the position of each message. Leaves out the epoch, and zeros before the commit."""
    sources = [message["value"]["provenance"]["source"] for message in app.messages("item")]
    return [(source["transaction"], source["position"][9:].lstrip("0")) for source in sources]


def test_a_delete_shows_that_a_column_was_dropped(tmp_path: Path) -> None:
    """The old row of the delete lacks the dropped column. It still is a complete row: no value is unavailable."""
    wide = {"id": "int32", "status": "string", "note": "string"}
    of_item = app(
        tmp_path,
        event("c", ITEM, None, {**A, "note": "n"}, columns=wide, connector="mysql"),
        event("d", ITEM, A, None, connector="mysql"),
    )
    of_item.run()
    assert published(of_item)[1] == ("delete", "1", None, A)
    assert "unavailableOriginal" not in of_item.messages("item")[1]["value"]["provenance"]["source"]


def test_each_kind_of_event_is_published(tmp_path: Path) -> None:
    of_item = app(
        tmp_path,
        event("r", ITEM, None, A, snapshot="last", transaction=None),
        event("u", ITEM, A, B),
        event("d", ITEM, B, None),
        tombstone(ITEM, {"id": 1}),
        event("c", ITEM, None, C),
    )
    of_item.run()
    assert published(of_item) == [
        ("read", "1", A, "unknown"),
        ("update", "1", B, A),
        ("delete", "1", None, B),
        ("create", "1", C, "unknown"),
    ]
    source = of_item.messages("item")[1]["value"]["provenance"]["source"]
    assert {name: source[name] for name in ("connector", "database", "table", "transaction", "committedAt")} == {
        "connector": "postgresql",
        "database": "shop",
        "table": "public.item",
        "transaction": "7",
        "committedAt": "2026-11-18T11:06:40.000000Z",
    }


def test_the_original_is_unknown_if_the_event_has_no_old_row(tmp_path: Path) -> None:
    """If the replica identity is not FULL, PostgreSQL logs only the key of a deleted row, and Debezium writes nulls for
    the other columns.
    """
    of_item = app(
        tmp_path,
        event("c", ITEM, None, A),
        event("u", ITEM, None, B),
        event("d", ITEM, {"id": 1, "status": None}, None),
    )
    of_item.run()
    assert published(of_item)[1:] == [("update", "1", B, "unknown"), ("delete", "1", None, {"id": 1})]
    assert of_item.messages("item")[-1]["value"]["provenance"]["source"]["unavailableOriginal"] == ["status"]


def test_after_a_restart_the_service_knows_whether_old_rows_are_whole(tmp_path: Path) -> None:
    of_item = app(tmp_path, event("c", ITEM, None, A), event("u", ITEM, A, B))
    of_item.run()
    of_item.topics.parts["app.public.item/0"] += [event("d", ITEM, B, None)]
    of_item.run()
    assert published(of_item)[-1] == ("delete", "1", None, B)


def test_other_connectors_log_whole_rows(tmp_path: Path) -> None:
    of_item = app(tmp_path, event("d", ITEM, A, None, connector="mysql"))
    of_item.run()
    assert published(of_item) == [("delete", "1", None, A)]


def test_an_old_row_that_has_only_the_columns_of_an_index_is_ignored(tmp_path: Path) -> None:
    of_item = app(tmp_path, event("u", ITEM, {"id": 0, "status": "a"}, B))
    of_item.run()
    assert published(of_item) == [("update", "1", B, "unknown")]


MOVED = {"id": 2, "status": "b"}


def moving(transaction: int = 7) -> list[SourceRecord]:
    return [
        event("u", ITEM, A, A),
        event("d", ITEM, A, None, headers=[key_header("newkey", {"id": 2})]),
        tombstone(ITEM, {"id": 1}),
        event("c", ITEM, None, MOVED, headers=[key_header("oldkey", {"id": 1})], transaction=transaction),
    ]


def test_a_row_whose_key_changed_moves(tmp_path: Path) -> None:
    of_item = app(tmp_path, *moving())
    of_item.run()
    assert published(of_item)[1:] == [("delete", "1", None, A), ("create", "2", MOVED, "unknown")]
    deleted, created = of_item.messages("item")[1:]
    assert deleted["movedTo"]["key"] == "2"
    assert created["movedFrom"]["key"] == "1"
    assert commits(of_item)[1:] == [("7", "1/00000002"), ("7", "1/00000003")]


def test_the_two_events_of_a_move_are_joined_even_if_they_are_in_two_partitions(tmp_path: Path) -> None:
    update, deleted, grave, created = moving()
    of_item = app(tmp_path, parts={"item/0": [update, deleted, grave, update], "item/1": [created]})
    of_item.run()
    assert [op for op, *_ in published(of_item)] == ["update", "delete", "create", "update"]
    assert "movedTo" in of_item.messages("item")[1]


@pytest.mark.parametrize("between", [event("c", ITEM, None, {"id": 9, "status": "z"}), None])
def test_the_two_events_of_a_move_are_two_changes_if_they_cannot_be_joined(
    tmp_path: Path, between: SourceRecord | None
) -> None:
    update, deleted, grave, created = moving(transaction=7 if between else 8)
    of_item = app(tmp_path, update, deleted, grave, *([between] if between else []), created)
    of_item.run()
    assert not any("movedTo" in message or "movedFrom" in message for message in of_item.messages("item"))
    assert [key for _, key, *_ in published(of_item)] == ["1", "1", *(["9"] if between else []), "2"]


def test_consecutive_events_with_the_same_id_are_one_transaction(tmp_path: Path) -> None:
    of_item = app(
        tmp_path,
        *(event("c", ITEM, None, {"id": n, "status": "s"}, transaction=name) for n, name in enumerate([5, 5, 6, 5])),
        event("c", ITEM, None, {"id": 8, "status": "s"}, transaction=None, at=1),
        event("c", ITEM, None, {"id": 9, "status": "s"}, transaction=None, at=2),
    )
    of_item.run()
    assert commits(of_item) == [
        ("5", "1/00000000"),
        ("5", "1/00000002"),
        ("6", "3/00000000"),
        ("5", "4/00000000"),
        ("0", "5/00000000"),
        ("0", "6/00000000"),
    ]


def test_the_rows_of_a_snapshot_are_divided_into_several_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("changelog.connectors.sources.debezium.assembling.assembler.SNAPSHOT_ROWS", 3)
    rows = [event("r", ITEM, None, {"id": n, "status": "s"}, snapshot="true") for n in range(7)]
    of_item = app(tmp_path, *rows)
    of_item.run()
    assert [position for _, position in commits(of_item)] == [
        *("1/00000000", "1/00000002", "1/00000004"),
        *("4/00000000", "4/00000002", "4/00000004"),
        "7/00000000",
    ]


def test_a_new_column_is_a_new_version(tmp_path: Path) -> None:
    wide = {"id": "int32", "status": "string", "note": "string"}
    after = {"id": 1, "status": "b", "note": "n"}
    of_item = app(
        tmp_path,
        event("c", ITEM, None, A),
        event("u", ITEM, {**A, "note": None}, after, columns=wide),
        event("d", ITEM, after, None, columns=wide),
    )
    of_item.run()
    versions = [message["value"]["current"] for message in of_item.messages("schemas")]
    assert [[name for name, _ in version["columns"]] for version in versions] == [["id", "status"], [*wide]]
    assert versions[1]["restated"] == []
    of_item.run()
    assert len(of_item.messages("schemas")) == 2


def test_an_incompatible_column_stops_the_service_until_it_is_accepted(tmp_path: Path) -> None:
    of_item = app(
        tmp_path,
        event("c", ITEM, None, A),
        event("c", ITEM, None, {"id": 2, "status": 5}, columns={"id": "int32", "status": "int32"}, transaction=8),
        event("c", ITEM, None, {"id": 3, "status": 5}, columns={"id": "int32", "status": "int32"}, transaction=8),
    )
    with pytest.raises(ChangelogError, match="the columns of entity item changed in a way") as caught:
        of_item.run()
    assert caught.value.kind is Kind.STOP
    assert [key for _, key, *_ in published(of_item)] == ["1"]
    assert of_item.checkpoint.source["ahead"] == [["app.public.item/0", 1, 3]]
    edit(of_item, accepted={"item": str(caught.value.position)})
    of_item.run()
    assert [key for _, key, *_ in published(of_item)] == ["1", "2", "3"]
    assert "ahead" not in of_item.checkpoint.source


def edit(of_item: App, **changes: Any) -> None:
    """Changes fields of the stored checkpoint, as commands such as `changelog accept` do."""
    sink = FileSink(of_item.path)
    stored = sink.recover()
    assert stored is not None
    sink.commit(replace(stored, **changes))
    sink.close()


@pytest.mark.parametrize("decision", ["skip", "dead-letter", "default"])
def test_a_decision_applies_to_the_event_at_which_the_service_stopped(tmp_path: Path, decision: str) -> None:
    """After the restart, the events of the two parts would arrive in another order. But the order before the restart is
    stored with the stop, and must be kept.
    """
    parts = {
        "item/0": [event("c", ITEM, None, A, transaction=5), truncate(ITEM, transaction=6, at=6)],
        "item/1": [event("c", ITEM, None, {"id": n, "status": "s"}, transaction=6, at=6) for n in (7, 8)],
    }
    of_item = app(tmp_path, parts=parts, entities=[entity("item", partitions=1)])
    with pytest.raises(ChangelogError, match="item was truncated") as caught:
        of_item.run()
    assert [key for _, key, *_ in published(of_item)] == ["1"]
    with pytest.raises(ChangelogError) as again:
        of_item.run()
    assert str(again.value) == str(caught.value)
    stored = of_item.checkpoint
    assert stored.stop is not None
    of_item.topics.at_once = False
    edit(of_item, decisions=stored.decisions.accept(stored.stop.position, decision))
    of_item.run()
    ops = [op for op, *_ in published(of_item)]
    assert sorted(ops) == ["create", "create", "create", *(["truncate"] if decision == "default" else [])]
    assert len(of_item.messages("dead")) == (decision == "dead-letter")


def test_a_message_that_is_no_event_can_be_skipped(tmp_path: Path) -> None:
    strange = SourceRecord(topic="app.public.item", key=None, value=b'{"a": 1}')
    of_item = app(tmp_path, event("c", ITEM, None, A), strange, event("u", ITEM, A, B))
    with pytest.raises(ChangelogError, match="item/0, before 2: a message of topic app") as caught:
        of_item.run()
    stored = of_item.checkpoint
    assert stored.stop is not None
    assert (caught.value.kind, stored.stop.choices) == (Kind.STOP, ("skip",))
    edit(of_item, decisions=stored.decisions.accept(stored.stop.position, "skip"))
    of_item.run()
    assert [op for op, *_ in published(of_item)] == ["create", "update"]


def test_json_without_a_schema_needs_declared_types(tmp_path: Path) -> None:
    [plain] = [event("c", ITEM, None, A)]
    value, key = (json.loads(part or b"")["payload"] for part in (plain.value, plain.key))
    message = msgspec.structs.replace(plain, value=json.dumps(value).encode(), key=json.dumps(key).encode())
    of_item = app(tmp_path, event("c", ITEM, None, {"id": 5, "status": "s"}), message)
    with pytest.raises(ChangelogError) as caught:
        of_item.run()
    assert caught.value.kind is Kind.PRECONDITION
    assert "\n" not in str(caught.value)
    assert [key for _, key, *_ in published(of_item)] == ["5"]
    types = TranslationSettings(types={ITEM: {"id": "int", "status": "string"}})
    typed = App(of_item.topics, of_item.path, of_item.entities, translation=types)
    typed.run()
    assert published(typed)[-1] == ("create", "1", A, "unknown")


def test_events_of_tables_that_are_not_configured_are_counted(tmp_path: Path) -> None:
    of_item = app(
        tmp_path, event("c", ("public", "other"), None, A), truncate(("public", "gone")), event("c", ITEM, None, A)
    )
    with structlog.testing.capture_logs() as logs:
        of_item.run()
    [line] = [line for line in logs if line["event"] == "events of tables that are not configured"]
    assert (line["tables"], line["count"]) == ({"public.other": 1, "public.gone": 1}, 2)
    assert len(published(of_item)) == 1


@pytest.mark.parametrize("prefix", ["provenance", "provenance-session"])
@pytest.mark.parametrize("seed", range(3, 6))
def test_a_half_published_transaction_continues_after_a_restart(seed: int, prefix: str, tmp_path: Path) -> None:
    """The events arrive with pauses, so their transaction is published piece by piece. The stamp at the beginning of
    the transaction must apply to all of its rows.
    """
    rows = [event("c", ITEM, None, {"id": n, "status": "s"}, transaction=5) for n in range(300)]
    till = stamp(b'{"serviceName":"till"}', transaction=5, at=0, prefix=prefix)
    topics = Topics({"item/0": [till, *rows]}, Random(seed))
    of_item = App(topics, tmp_path / "log", [entity("item")])
    of_item.run(killed_if=lambda stored: stored.partial)
    assert of_item.checkpoint.partial
    assert of_item.checkpoint.source["open"]["stamp"][1] == "till"
    topics.at_once = True
    of_item.run()
    assert [int(key) for _, key, *_ in published(of_item)] == [*range(300)]
    positions = [message["value"]["provenance"]["source"]["position"] for message in of_item.messages("item")]
    assert positions == sorted(set(positions))
    assert {message["value"]["provenance"]["serviceName"] for message in of_item.messages("item")} == {"till"}
    assert not of_item.checkpoint.partial


def test_a_part_that_arrives_after_a_restart_has_the_stamp_of_its_transaction(tmp_path: Path) -> None:
    first, second, other = (
        event("c", ITEM, None, {"id": n, "status": "s"}, transaction=transaction)
        for n, transaction in ((1, 5), (2, 5), (3, 6))
    )
    of_item = app(tmp_path, stamp(b'{"serviceName":"till"}', transaction=5, at=0), first)
    of_item.run()
    of_item.topics.parts["app.public.item/0"] += [second, other]
    of_item.run()
    services = [message["value"]["provenance"]["serviceName"] for message in of_item.messages("item")]
    assert services == ["till", "till", "nobody"]


def test_changed_settings_are_refused(tmp_path: Path) -> None:
    of_item = app(tmp_path, event("c", ITEM, None, A))
    of_item.run()
    changed = App(of_item.topics, of_item.path, [entity("item", partitions=5)])
    with pytest.raises(ChangelogError, match="the configuration no longer fits the changelog") as caught:
        changed.run()
    assert caught.value.kind is Kind.SETTINGS


def test_another_input_is_a_gap_and_begins_a_new_epoch(tmp_path: Path) -> None:
    of_item = app(tmp_path, event("c", ITEM, None, A))
    of_item.run()
    edit(of_item, source={**of_item.checkpoint.source, "input": "topics"})
    with pytest.raises(ChangelogError, match="made from topics, but the configuration names memory") as caught:
        of_item.run()
    assert caught.value.kind is Kind.GAP
    sink = FileSink(of_item.path, over_gap=True)
    end = ChangelogEnd(checkpoint=sink.recover(), epoch=1, committed_at=None, lost=())
    with of_item.database.cross_gap(
        of_item.entities, end.checkpoint, lambda: end, reason="x", keep_hold=False, accept_settings=False
    ) as crossed:
        sink.add([batch.from_records(crossed.records)])
        sink.commit(crossed.checkpoint)
    sink.close()
    of_item.run()
    assert published(of_item) == [("create", "1", A, "unknown")] * 2
    assert of_item.messages("item")[-1]["value"]["provenance"]["source"]["position"].startswith("00000002/")


def test_an_entity_that_is_partitioned_by_other_columns_needs_old_rows(tmp_path: Path) -> None:
    by_status = entity("item", partition_by=("status",), partitions=1000)
    of_item = app(tmp_path, event("u", ITEM, A, B), event("u", ITEM, None, C, transaction=8), entities=[by_status])
    with pytest.raises(ChangelogError, match="no value for the key or partition column status") as caught:
        of_item.run()
    assert caught.value.kind is Kind.STOP
    assert [op for op, *_ in published(of_item)] == ["delete", "create"]


def test_the_errors_for_unsupported_operations_name_them(tmp_path: Path) -> None:
    database = app(tmp_path, event("c", ITEM, None, A)).database
    with pytest.raises(ChangelogError, match="`rebuild` is not for Debezium's events: the service reads no tables"):
        database.send_signals([Signal(do="rebuild", id="1", entity="item")])
    with pytest.raises(ChangelogError, match="nothing to compare with"), database.fence([], deadline=0.0):
        pass
    with pytest.raises(ChangelogError, match="no statements to run"):
        database.fix(["SELECT 1"])
    assert database.clock_ahead_s() is None


def test_the_columns_of_tables_are_learned_from_their_last_events(tmp_path: Path) -> None:
    of_item = app(tmp_path, event("c", ITEM, None, A), event("u", ITEM, None, B))
    [table] = of_item.database.tables()
    assert (table.schema, table.name, table.primary_key, table.rows_estimate) == ("public", "item", ("id",), 2)
    assert [(column.name, column.not_null) for column in table.columns] == [("id", True), ("status", False)]
    assert (table.trait.value, table.trait.suffices) == ("missing", False)
    [shape] = of_item.database.shapes([entity("item")])
    assert [name for name, _ in shape.fields] == ["id", "status"]
    with pytest.raises(ChangelogError, match=r"there is no event of the table public.sale yet"):
        of_item.database.shapes([entity("sale")])


def findings(of_item: App) -> dict[str, Finding]:
    return {finding.name: finding for finding in of_item.database.check(of_item.entities, None)}


def test_check_names_what_events_lack(tmp_path: Path) -> None:
    messages = [event("u", ITEM, None, A), SourceRecord(topic="app.public.item", key=None, value=b"[]")]
    results = findings(app(tmp_path, *messages, entities=[entity("item"), entity("sale")]))
    assert results["item"].message == "`before` is missing in updates, so their `original` is unknown"
    whole_rows = "ALTER TABLE … REPLICA IDENTITY FULL"
    hint = f"to log old rows: {whole_rows}; or set [state] path, and the service keeps the old rows"
    assert results["item"].hint == hint
    assert (results["sale"].status, results["delivery"].status) == ("warn", "ok")
    assert results["app.public.item/0"].status == "fail"


def test_check_says_that_originals_come_from_a_state(tmp_path: Path) -> None:
    of_item = app(tmp_path, event("u", ITEM, None, A))
    of_item.database = DebeziumDatabase(replace(of_item.settings, keeps_state=True))
    assert (findings(of_item)["item"].status, findings(of_item)["item"].message) == (
        "ok",
        "`before` is missing in updates; their `original` comes from the state",
    )


def test_check_names_a_connector_that_may_repeat_events(tmp_path: Path) -> None:
    topics = Topics({"item/0": [event("c", ITEM, None, A)]}, Random(1))
    of_item = App(topics, tmp_path / "log", [entity("item")], connector="cassandra")
    assert findings(of_item)["delivery"].message.startswith("Debezium's connector cassandra may repeat events")
