"""Tests the tally of drifted keys. A tally counts the keys and holds a few samples of them.

It also says to how many *incidents* the keys belong. Keys of one incident were written at about the same time.
"""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from changelog.spark_jobs.drift.judge_task import SAMPLES_MAX
from changelog.spark_jobs.drift.summary import BUCKET_S, Tally, tallied

AT = datetime(2026, 11, 21, 3, 10, tzinfo=UTC)


def row(key: int, kind: str = "changed", *columns: str, at: datetime | None = AT, service: str = "a") -> dict[str, Any]:
    return {
        "entity": "order",
        "key": str(key),
        "kind": kind,
        "columns": list(columns),
        "position": None if at is None else f"00000001/{key:016X}/00000000",
        "committed_at": at,
        "service_name": service,
        "api_version": "v1",
        "sample": '{"price":{"source":-0,"changelog":1.50}}',
        "provenance": '{"serviceName":"a"}',
    }


def test_each_drifted_key_is_written_as_a_line_and_counted() -> None:
    keys = io.StringIO()
    rows = [
        row(1, "changed", "a", "b"),
        row(2, "changed", "b", service="b"),
        row(3, "missing", at=None),
        row(4, "extra"),
    ]
    tally = tallied(rows, keys)["order"].to_json()
    assert [json.loads(line) for line in keys.getvalue().splitlines()] == [
        {name: key_row[name] for name in ("entity", "key", "kind", "columns", "position")} for key_row in rows
    ]
    assert (tally["missing"], tally["extra"], tally["changed"], tally["drifted"]) == (1, 1, 2, 4)
    assert tally["columns"] == {"b": 2, "a": 1}
    assert tally["writers"] == [
        {"serviceName": "a", "apiVersion": "v1", "drifted": 2},
        {"serviceName": "b", "apiVersion": "v1", "drifted": 1},
    ]
    assert bytes(tally["samples"][0]["columns"]["price"]["source"]) == b"-0"


def test_a_sample_keeps_the_text_of_the_context() -> None:
    context = '{ "n": 1.50, "e": 1E+999, "n": "\\ud800" }'
    tally = Tally()
    tally.add({**row(1), "provenance": f'{{"serviceName":"a","context":{context},"source":{{"op":"update"}}}}'})
    [sample] = tally.to_json()["samples"]
    assert sample["provenance"] == {"serviceName": "a", "context": context, "source": {"op": "update"}}


def test_the_size_of_samples_is_limited() -> None:
    tally = Tally()
    for number in range(3 * SAMPLES_MAX):
        tally.add(row(number))
    assert len(tally.samples) == SAMPLES_MAX
    assert tally.drifted == 3 * SAMPLES_MAX


def test_incidents_are_distinguished_by_when_their_keys_were_written() -> None:
    tally = Tally()
    for number in range(20):  # each key was written shortly after the one before it
        tally.add(row(number, at=AT + timedelta(seconds=number * BUCKET_S)))
    incidents = tally.to_json()["incidents"]
    assert (incidents["count"], incidents["shape"]) == (1, "one")
    assert (incidents["firstPosition"], incidents["lastPosition"]) == tuple(
        f"00000001/{n:016X}/00000000" for n in (0, 19)
    )
    assert incidents["firstAt"] == "2026-11-21T03:10:00.000000Z"
    tally.add(row(50, at=AT + timedelta(days=1)))
    incidents = tally.to_json()["incidents"]
    assert (incidents["count"], incidents["shape"]) == (2, "many")


def test_keys_that_the_changelog_never_had_belong_to_no_incident() -> None:
    tally = Tally()
    tally.add(row(1, "missing", at=None))
    assert tally.to_json()["incidents"] is None


def test_rows_that_were_read_have_no_writer_and_belong_to_no_incident() -> None:
    tally = Tally()
    for number in range(3):
        tally.add({**row(number), "service_name": None, "api_version": None})
    assert tally.to_json()["incidents"] is None
    assert tally.to_json()["writers"] == [{"serviceName": None, "apiVersion": None, "drifted": 3}]
    tally.add(row(50))
    assert tally.to_json()["incidents"]["firstPosition"] == "00000001/0000000000000032/00000000"
