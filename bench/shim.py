"""Measures how fast the service translates Debezium's events, groups them by transaction, and encodes them as Arrow.

Nothing is read from a network, and nothing is stored: the messages are made in memory, as Debezium's connector for
PostgreSQL writes them. Each message is an update of a row of 12 columns, and also has the old row. `--rows` says how
many messages a transaction has. There are three forms of messages: JSON without schemas, for which the types of columns
are declared; JSON with the schema in each message; and Avro.

One more part, *in-process*, runs the whole service with Debezium in a Java process, and reads the snapshot of a
PostgreSQL table. This part divides the CPU time of Python by that of Java (`bench/debezium.py`).
"""

import argparse
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench import debezium
from changelog.connectors.capture.assembly.assembly import Assembly, AssemblyRun
from changelog.connectors.capture.rows.binding import Binding
from changelog.connectors.capture.rows.published_fields import published_fields
from changelog.connectors.capture.rows.row_change import Update
from changelog.connectors.capture.rows.row_records import Origin, Transaction
from changelog.connectors.commands.run import COLLECT_EVERY
from changelog.connectors.sources.debezium.decode.encode import PublishedRow, RowEncoder
from changelog.connectors.sources.debezium.decode.events import Changed, EventTable, SourceRecord
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.decode.translate import Translator
from changelog.envelope.connect.encoders import avro_encoder
from changelog.envelope.connect.schema import DECIMAL, PRECISION, SCALE, ConnectSchema, to_avro, to_json
from changelog.envelope.entity import Entity
from changelog.envelope.model import Op, Stamp

IN_PROCESS = "in-process"

MESSAGES, QUICK_MESSAGES = 100_000, 20_000
BLOCK = 4_096
"""How many messages are translated at once. A consumer gets about as many at once."""

TOPIC: Final = "shop.public.orders"
_TYPES: Final[Mapping[str, tuple[ConnectSchema, str]]] = {
    "id": (ConnectSchema(type="int64"), "long"),
    "customer": (ConnectSchema(type="int64"), "long"),
    "status": (ConnectSchema(type="string", optional=True), "string"),
    "amount": (
        ConnectSchema(type="bytes", name=DECIMAL, parameters={SCALE: "2", PRECISION: "12"}, optional=True, version=1),
        "Decimal(12,2)",
    ),
    "currency": (ConnectSchema(type="string", optional=True), "string"),
    "quantity": (ConnectSchema(type="int32", optional=True), "int"),
    "paid": (ConnectSchema(type="boolean", optional=True), "boolean"),
    "rating": (ConnectSchema(type="double", optional=True), "double"),
    "created_at": (
        ConnectSchema(type="string", name="io.debezium.time.ZonedTimestamp", optional=True, version=1),
        "ZonedTimestamp",
    ),
    "updated_at": (
        ConnectSchema(type="int64", name="io.debezium.time.MicroTimestamp", optional=True, version=1),
        "MicroTimestamp",
    ),
    "note": (ConnectSchema(type="string", optional=True), "string"),
    "address": (ConnectSchema(type="string", name="io.debezium.data.Json", optional=True, version=1), "Json"),
}
"""The schema of each column, and the type that is declared for it if messages have no schemas."""

_TEXT, _LONG = ConnectSchema(type="string"), ConnectSchema(type="int64")
_OPTIONAL_TEXT, _OPTIONAL_LONG = ConnectSchema(type="string", optional=True), ConnectSchema(type="int64", optional=True)
_ROW: Final = ConnectSchema(
    type="struct",
    name=f"{TOPIC}.Value",
    optional=True,
    fields=tuple((name, schema) for name, (schema, _) in _TYPES.items()),
)
_SOURCE: Final = ConnectSchema(
    type="struct",
    name="io.debezium.connector.postgresql.Source",
    fields=(
        *((name, _TEXT) for name in ("version", "connector", "name")),
        ("ts_ms", _LONG),
        ("snapshot", _OPTIONAL_TEXT),
        ("db", _TEXT),
        ("sequence", _OPTIONAL_TEXT),
        ("ts_us", _OPTIONAL_LONG),
        ("ts_ns", _OPTIONAL_LONG),
        ("schema", _TEXT),
        ("table", _TEXT),
        ("txId", _OPTIONAL_LONG),
        ("lsn", _OPTIONAL_LONG),
        ("xmin", _OPTIONAL_LONG),
        ("origin", _OPTIONAL_TEXT),
        ("origin_lsn", _OPTIONAL_LONG),
    ),
)
_BLOCK: Final = ConnectSchema(
    type="struct",
    name="event.block",
    optional=True,
    version=1,
    fields=(("id", _TEXT), ("total_order", _LONG), ("data_collection_order", _LONG)),
)
_EVENT: Final = ConnectSchema(
    type="struct",
    name=f"{TOPIC}.Envelope",
    version=2,
    fields=(
        ("before", _ROW),
        ("after", _ROW),
        ("source", _SOURCE),
        ("transaction", _BLOCK),
        ("op", _TEXT),
        ("ts_ms", _OPTIONAL_LONG),
        ("ts_us", _OPTIONAL_LONG),
        ("ts_ns", _OPTIONAL_LONG),
    ),
)
_KEY: Final = ConnectSchema(type="struct", name=f"{TOPIC}.Key", fields=(("id", ConnectSchema(type="int64")),))

_NOW_US: Final = 1_795_000_000_000_000
_KEY_ID, _VALUE_ID = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The CPU time of a message in microseconds: for its translation, and for everything after it. `events_s` is how
    many events are processed in a second of CPU time.
    """

    translate_us: float
    encode_us: float
    events_s: int


def main() -> None:
    """Measures all forms, or the form that the user asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, help=f"messages: {MESSAGES}, with --quick {QUICK_MESSAGES}")
    parser.add_argument("--quick", action="store_true", help="run only one round, with fewer messages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--form", choices=[*FORMS, IN_PROCESS], help="measure only this form")
    parser.add_argument("--rows", type=int, default=1, help="changes of one transaction")
    parser.add_argument("--json", action="store_true", help="print a last line of JSON")
    options = parser.parse_args()
    count = options.messages or (QUICK_MESSAGES if options.quick else MESSAGES)
    gc.set_threshold(COLLECT_EVERY)
    forms = [options.form] if options.form else [*FORMS, IN_PROCESS]
    rounds = 1 if options.quick else options.rounds
    shown, ratios = {}, {}
    for form in forms:
        if form == IN_PROCESS:
            rows = debezium.SIZE.quick_rows if options.quick else debezium.SIZE.rows
            service = debezium.measured(["service"], rows, rounds)["service"]
            ratios["cpu_python_over_jvm"] = service.cpu_python_over_jvm
            shown[form] = asdict(service)
        else:
            shown[form] = asdict(_of_messages(form, count, options.rows, rounds))
    if options.json:
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"benchmark": "shim", "ratios": ratios, "figures": shown, "machine": machine}))


def _of_messages(form: str, count: int, rows: int, rounds: int) -> Figures:
    """Measures messages of a form, and prints and returns the figures."""
    messages = _messages(form, count, rows)
    gc.freeze()  # a service never has all messages in memory, so the garbage collector must not search them here
    figures = _median([_measured(messages) for _ in range(rounds)])
    print(
        f"{form:12}{figures.events_s:>9,} events/s{figures.translate_us:>8.1f} µs translated"
        f"{figures.encode_us:>8.1f} µs assembled and encoded",
        flush=True,
    )
    return figures


def _median(rounds: Sequence[Figures]) -> Figures:
    return Figures(
        translate_us=round(statistics.median(of.translate_us for of in rounds), 1),
        encode_us=round(statistics.median(of.encode_us for of in rounds), 1),
        events_s=int(statistics.median(of.events_s for of in rounds)),
    )


def _measured(messages: Sequence[SourceRecord]) -> Figures:
    """Processes all messages. Measures CPU time rather than elapsed time, because other work on the machine disturbs it
    less.
    """
    settings = TranslationSettings(
        types={("public", "orders"): {name: declared for name, (_, declared) in _TYPES.items()}},
        schema_of=lambda number: to_avro(_KEY if number == _KEY_ID else _EVENT),
    )
    translator, pipeline = Translator(settings), _Pipeline()
    pipeline.feed(translator.translate(messages[:BLOCK]))  # the first use makes libraries load parts of themselves
    translated = encoded = 0.0
    for begin in range(0, len(messages), BLOCK):
        block = messages[begin : begin + BLOCK]
        start = time.process_time()
        events = translator.translate(block)
        middle = time.process_time()
        rows = pipeline.feed(events)
        encoded += time.process_time() - middle
        translated += middle - start
        assert rows == len(block)
    count = len(messages)
    return Figures(
        translate_us=translated / count * 1e6,
        encode_us=encoded / count * 1e6,
        events_s=int(count / (translated + encoded)),
    )


class _Pipeline:
    """Groups updates by their transactions, and encodes them as Arrow."""

    def __init__(self) -> None:
        self._entity = Entity(
            name="order",
            table=("public", "orders"),
            key=("id",),
            partition_by=("id",),
            partitions=4,
            masks={},
            default_stamp=Stamp(api_version="unknown", service_name="unknown", identifier=""),
        )
        self._assembly = Assembly(
            entities={self._entity.table: self._entity}, published=None, partial=False, listener=None
        )
        self._origin = Origin(connector="postgresql", name="shop", database="shop")
        self._encoder = RowEncoder()
        self._bindings: dict[int, Binding] = {}
        self._commit, self._current = 0, ""

    def feed(self, events: Sequence[Any]) -> int:
        """Groups and encodes updates. Returns how many rows were encoded."""
        rows: list[PublishedRow] = []
        encoder = self._encoder
        run = AssemblyRun(self._assembly, lambda first, end, spans: encoder.encode(rows[first:end], spans))
        for event in events:
            assert isinstance(event, Changed)
            transaction = event.facts.transaction
            if transaction != self._current:
                if run.is_open:
                    run.commit(self._commit)
                self._commit, self._current = self._commit + 1, transaction
                run.begin(
                    Transaction(
                        xid=self._commit,
                        name=transaction,
                        epoch=1,
                        commit=self._commit,
                        committed_at=event.facts.committed_at,
                    )
                )
            binding = self._bindings.get(event.table.number) or self._bind(event.table)
            old_kind = None if event.before is None else "O"
            assert event.after is not None
            update = Update(relid=1, old_kind=old_kind, old=event.before, new=event.after)  # type: ignore[arg-type]
            rows.append(PublishedRow(self._origin, binding, Op.UPDATE, update))
            run.take(1)
        run.flush()
        return sum(of.num_rows for of in run.result().rows)

    def _bind(self, table: EventTable) -> Binding:
        names = [column.name for column in table.columns]
        fields = published_fields(
            self._entity, "public.orders", names, lambda index: table.columns[index].codec, b"secret"
        )
        binding = self._bindings[table.number] = Binding(
            entity=self._entity,
            table="public.orders",
            relid=1,
            width=len(names),
            fields=fields.fields,
            key=fields.key,
            partition=fields.partition,
            identity=frozenset({0}),
            full=False,
            lost=fields.lost,
            unlogged=(),
            whole_rows="",
            crossing=False,
            leaves=frozenset(),
            mask=None,
        )
        return binding


def _messages(form: str, count: int, rows: int) -> list[SourceRecord]:
    encode_key, encode_value = FORMS[form]
    return [
        SourceRecord(
            topic=TOPIC,
            key=encode_key({"id": number % 5000}),
            value=encode_value(_event(number, number // rows, as_json=form != "avro")),
            headers=(("__debezium.context.connectorName", b"postgresql"), ("__debezium.context.taskId", b"0")),
        )
        for number in range(count)
    ]


def _event(number: int, transaction: int, *, as_json: bool) -> dict[str, Any]:
    us = _NOW_US + transaction * 1000
    return {
        "before": _row(number, "NEW", as_json=as_json),
        "after": _row(number, "PAID", as_json=as_json),
        "source": {
            "version": "3.6.3.Final",
            "connector": "postgresql",
            "name": "shop",
            "ts_ms": us // 1000,
            "snapshot": "false",
            "db": "shop",
            "sequence": f'["{26189984 + transaction}","{26189984 + number}"]',
            "ts_us": us,
            "ts_ns": us * 1000,
            "schema": "public",
            "table": "orders",
            "txId": 700 + transaction,
            "lsn": 26189984 + number,
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
        },
        "transaction": None,
        "op": "u",
        "ts_ms": us // 1000,
        "ts_us": us,
        "ts_ns": us * 1000,
    }


def _row(number: int, status: str, *, as_json: bool) -> dict[str, Any]:
    unscaled = (100_000 + number % 9_000).to_bytes(3, "big")
    return {
        "id": number % 5000,
        "customer": 1_000_000 + number * 7,
        "status": status,
        "amount": "AYag" if as_json else unscaled,
        "currency": "EUR",
        "quantity": number % 9,
        "paid": status == "PAID",
        "rating": (number % 50) / 10,
        "created_at": f"2026-11-21T03:10:{number % 60:02}.886044Z",
        "updated_at": _NOW_US + number * 1_000_003,
        "note": f"note {number} of a customer" if number % 3 else None,
        "address": f'{{"city": "Lisboa", "zip": "{number:06}"}}',
    }


def _plain(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _with_schema(schema: ConnectSchema) -> Callable[[Any], bytes]:
    before = b'{"schema":%b,"payload":' % _plain(to_json(schema))
    return lambda value: before + _plain(value) + b"}"


def _avro(schema: ConnectSchema, number: int) -> Callable[[Any], bytes]:
    return avro_encoder(schema, b"\0" + number.to_bytes(4))


FORMS: Final[Mapping[str, tuple[Callable[[Any], bytes], Callable[[Any], bytes]]]] = {
    "plain": (_plain, _plain),
    "schema": (_with_schema(_KEY), _with_schema(_EVENT)),
    "avro": (_avro(_KEY, _KEY_ID), _avro(_EVENT, _VALUE_ID)),
}
"""The forms of messages. For each form, there is an encoder for keys, and one for values."""

if __name__ == "__main__":
    main()
