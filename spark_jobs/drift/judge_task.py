"""Judges the keys that may differ between source and changelog. Spark's tasks compare their rows column by column."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from changelog.connectors.sources.fences import Scan
from changelog.envelope.codec import json_codec
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.spark_jobs.drift.row_diff import EXTRA, MISSING, PENDING, ColumnHistory, Compared, RowState, compared

JUDGED: Final = pa.schema(
    [
        pa.field("entity", pa.utf8()),
        pa.field("key", pa.utf8()),
        pa.field("kind", pa.utf8()),
        pa.field("columns", pa.list_(pa.utf8())),
        pa.field("unknown", pa.list_(pa.utf8())),
        pa.field("schema_changed", pa.list_(pa.utf8())),
        pa.field("undecided", pa.bool_()),
        pa.field("pending", pa.bool_()),
        pa.field("position", pa.utf8()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("service_name", pa.utf8()),
        pa.field("api_version", pa.utf8()),
        pa.field("sample", pa.utf8()),
        pa.field("provenance", pa.utf8()),
    ]
)
"""The columns of judged keys. Each row is one key.

`kind` is the kind of drift, or null if the key did not drift. `columns` are the columns that drifted. `unknown` and
`schema_changed` are columns that differ for reasons that are not drift (`changelog.spark_jobs.drift.row_diff`).
`undecided` says that the changelog does not show the key's state at the fence. `pending` says that the changelog shows
this state only as the original of a later change. The columns from `position` to `api_version` describe the key's last
change. Only the first drifted keys of each task have `sample` and `provenance`; `sample` is JSON that has the values
that differ, by column.
"""

SAMPLES_MAX: Final = 20
"""A report has at most this many samples of one entity. So no task makes more than this for an entity."""

VALUE_CHARACTERS_MAX: Final = 200
"""Values in a sample are cut to this many characters."""

Texts = Mapping[tuple[str, str], tuple[str, str | None]]
"""Rows of the source, by entity and key. For each row, there are its JSON and its `json_null`
(`changelog.connectors.sources.fences.ROWS`).
"""

Fetch = Callable[[Sequence[Mapping[str, Any]]], Texts]
"""Returns the source's rows for some keys. A key that the source lacks has no row."""


def judge(
    batches: Iterable[pa.RecordBatch], shapes: Mapping[str, ColumnHistory], fetch: Fetch
) -> Iterator[pa.RecordBatch]:
    """Judges keys: turns batches from `changelog.spark_jobs.drift.key_states.with_changes` into batches of `JUDGED`.

    `shapes` has the columns of each entity, with their history.
    """
    samples: Counter[str] = Counter()
    for batch in batches:
        rows = batch.to_pylist()
        texts = fetch(rows)
        verdicts = [_judged(row, texts, shapes[row["entity"]], samples) for row in rows]
        if verdicts:
            yield pa.RecordBatch.from_pylist(verdicts, schema=JUDGED)


def fetcher(source: Scan) -> Fetch:
    """Returns a function that reads rows under the fence by their locators (their places in the table)."""

    def fetch(rows: Sequence[Mapping[str, Any]]) -> Texts:
        locators: dict[tuple[str, int], list[str]] = defaultdict(list)
        for row in rows:
            if row["locator"] is not None:
                locators[row["entity"], row["leaf"]].append(row["locator"])
        if not locators:
            return {}
        texts: dict[tuple[str, str], tuple[str, str | None]] = {}
        for batch in source.rows_at(locators):
            texts |= _texts(batch)
        return texts

    return fetch


def joined(rows: Sequence[Mapping[str, Any]]) -> Texts:
    """Returns the source's rows that `changelog.spark_jobs.drift.key_states.with_source` joined to the keys."""
    return {
        (row["entity"], row["key"]): (row["source_current"], row["source_json_null"])
        for row in rows
        if row["source_current"] is not None
    }


def _texts(batch: pa.RecordBatch) -> dict[tuple[str, str], tuple[str, str | None]]:
    names = ("entity", "key", "current", "json_null")
    columns = (batch.column(name).to_pylist() for name in names)
    return {(entity, key): (current, json_null) for entity, key, current, json_null in zip(*columns, strict=True)}


def _judged(row: Mapping[str, Any], texts: Texts, shape: ColumnHistory, samples: Counter[str]) -> dict[str, Any]:
    entity, key, position = row["entity"], row["key"], row["position"]
    source = _source(row, texts)
    changelog, undecided = _changelog(row)
    difference = Compared(kind=None) if undecided else compared(source, changelog, shape, position)
    sample = difference.kind is not None and samples[entity] < SAMPLES_MAX
    samples[entity] += sample
    return {
        "entity": entity,
        "key": key,
        "kind": difference.kind,
        "columns": difference.columns,
        "unknown": difference.unknown,
        "schema_changed": difference.schema_changed,
        "undecided": undecided,
        "pending": row["state"] == PENDING and changelog is not None,
        "position": position,
        "committed_at": row["committed_at"],
        **_writer(row),
        "sample": _sample(difference, source, changelog) if sample else None,
        "provenance": row["provenance"] if sample else None,
    }


def _writer(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns which service wrote the changelog's row. If the row was read from its table, this is unknown, and the
    values are null.
    """
    names = ("service_name", "api_version")
    return dict.fromkeys(names) if row["op"] == Op.READ else {name: row[name] for name in names}


def _source(row: Mapping[str, Any], texts: Texts) -> RowState | None:
    texts_of_key = texts.get((row["entity"], row["key"]))
    if texts_of_key is None:
        if row["locator"] is not None:
            raise ChangelogError(
                Kind.MALFORMED, f"a row of the entity {row['entity']} is no longer at its place in the table"
            )
        return None
    current, json_null = texts_of_key
    return RowState.parse(current, json_null=msgspec.json.decode(json_null, type=list[str]) if json_null else ())


def _changelog(row: Mapping[str, Any]) -> tuple[RowState | None, bool]:
    """Returns the changelog's row at the fence (None if there is none), and whether the key is undecided.

    If the changelog only has changes of the key that are after the fence, the original of the first of these changes is
    the row at the fence.
    """
    op = row["op"]
    if row["position"] is None:
        return None, False
    if op is None:  # Kafka's compaction has removed the row since its position was read.
        return None, True
    source = json_codec.decode_provenance(row["provenance"]).source
    if row["state"] != PENDING:
        if op == Op.DELETE:
            return None, False
        return RowState.parse(row["current"] or "", json_null=source.json_null, unavailable=source.unavailable), False
    if op == Op.CREATE:
        return None, False
    if op == Op.READ or row["original"] is None or source.unavailable_original:
        return None, True
    return RowState.parse(row["original"], json_null=source.json_null_original), False


def _sample(difference: Compared, source: RowState | None, changelog: RowState | None) -> str:
    """Returns, as JSON, the values of the columns that drifted. If only one side has the row, returns all values of the
    row.
    """
    sides = {"source": source, "changelog": changelog}
    names: Iterable[str] = difference.columns
    if difference.kind in (MISSING, EXTRA):
        row = source or changelog
        names = row.values if row is not None else ()
    values = {
        name: {
            side: _cut(state.values[name])
            for side, state in sides.items()
            if state is not None and name in state.values
        }
        for name in names
    }
    return msgspec.json.encode(values).decode()


def _cut(token: bytes) -> msgspec.Raw | str:
    text = token.decode()
    if len(text) <= VALUE_CHARACTERS_MAX:
        return msgspec.Raw(token)
    content = str(msgspec.json.decode(token)) if text.startswith('"') else text
    return content if len(content) <= VALUE_CHARACTERS_MAX else content[: VALUE_CHARACTERS_MAX - 1] + "…"
