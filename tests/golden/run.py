"""Runs a golden script against a server, with the source as the service has it."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import structlog
from msgspec import Raw
from psycopg.pq import TransactionStatus

from changelog.connectors.config import Config
from changelog.connectors.sources.postgres.admin.catalog import read_tables
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.sources.postgres.settings import Settings
from changelog.connectors.sources.postgres.source import PostgresSource
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_lsn
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.connectors.wiring import entities
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.codec import json_codec
from changelog.envelope.columnar import batch
from changelog.envelope.errors import RETRIED, ChangelogError
from changelog.envelope.model import Missing, Place, Record, Stamp
from tests.golden.script import Script, Step, message_text
from tests.message_schema import MESSAGE
from tests.patience import PATIENCE_S

OF_THE_FILE = ("server", "ordinals")
DEFAULT_STAMP = Stamp(api_version="unknown", service_name="unknown", identifier="")


def run_golden(script: Script, dsn: str) -> list[list[str]]:
    """What each step of the script gave: messages, stops and changed columns, as JSON texts."""
    changelog = _Changelog(dsn, script.config)
    try:
        with psycopg.connect(dsn, autocommit=True) as session:
            return [list(_run(step, session, changelog)) for step in script.steps]
    finally:
        changelog.close()


def _run(step: Step, session: psycopg.Connection[Any], changelog: "_Changelog") -> Iterator[str]:
    match step.command:
        case ():
            assert step.sql is not None
            session.execute(step.sql.encode())
        case ("run" | "restart",):
            changelog.open()
        case ("accept", decision):
            changelog.accept(decision)
        case other:
            raise ValueError(f"unknown command {' '.join(other)}")
    if changelog.is_open and session.info.transaction_status == TransactionStatus.IDLE:
        yield from changelog.read()


class _Changelog:
    """The source, opened again from what it gave before; nothing is stored."""

    def __init__(self, dsn: str, config: Mapping[str, Any]) -> None:
        settings = {name: value for name, value in config.items() if name not in OF_THE_FILE}
        self._config = Config.model_validate(
            {"name": "golden", "source": {"kind": "postgres", "dsn": dsn}, "sink": {"path": "unused"}, **settings}
        )
        self._dsn = dsn
        self._ordinals = config.get("ordinals", True)
        self._source: PostgresSource | None = None
        self._checkpoint: Checkpoint | None = None
        self._stop: ChangelogError | None = None

    @property
    def is_open(self) -> bool:
        return self._source is not None and self._stop is None

    def open(self) -> None:
        self.close()
        with connect(self._dsn, settings=SETTINGS) as connection:
            bound = entities.resolve(self._config, read_tables(connection))
        settings = Settings(
            name=self._config.name,
            dsn=self._dsn,
            slot=f"golden_{psycopg.conninfo.conninfo_to_dict(self._dsn)['dbname']}",
            publication="golden",
            failover=False,
            hmac_key=self._config.hmac_key,
            workers=1,
        )
        self._source = PostgresSource(settings, bound, lambda: self._checkpoint)

    def accept(self, decision: str) -> None:
        """As `changelog accept`, and the service started again."""
        assert self._stop is not None
        assert self._stop.position is not None
        assert self._checkpoint is not None
        decisions = self._checkpoint.decisions.accept(self._stop.position, decision)
        self._checkpoint = replace(self._checkpoint, decisions=decisions)
        self._stop = None
        self.open()

    def read(self) -> Iterator[str]:
        """All that is in the log by now, up to a stop."""
        assert self._source is not None
        target = self._mark()
        deadline = time.monotonic() + PATIENCE_S
        while not self._reached(target):
            assert time.monotonic() < deadline, "the source is late"
            with structlog.testing.capture_logs() as said:
                try:
                    piece = self._source.read(0.05)
                except ChangelogError as error:
                    if error.kind in RETRIED:
                        raise
                    self._stop = error
                    yield message_text([("stop", json.dumps(error.message))])
                    return
            yield from _columns(said)
            if piece is not None:
                self._checkpoint = piece.checkpoint
                self._source.confirm(piece.checkpoint)
                records = (record for rows in piece.rows for record in batch.records(rows))
                yield from (_message(record, ordinal=self._ordinals) for record in records)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _mark(self) -> int:
        """Commits something that concerns nobody; gives the log's end after it."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'golden', '')")
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    def _reached(self, target: int) -> bool:
        stored = self._checkpoint
        return (
            stored is not None
            and through_lsn(stored) >= target
            and all(window["complete"] for window in stored.windows.values())
        )


def _message(record: Record, *, ordinal: bool) -> str:
    """The message of README.md, as JSON text."""
    envelope = record.envelope
    members = [("entity", _json(record.entity)), ("key", _json(record.place.key))]
    if record.place.partition:
        members.append(("partition", _json(record.place.partition)))
    for name, place in (("movedTo", record.moved_to), ("movedFrom", record.moved_from)):
        if place is not None:
            members.append((name, _json(_place(place))))
    members.append(("provenance", _provenance(record, ordinal=ordinal)))
    members.append(("current", _state(envelope.current)))
    if not isinstance(envelope.original, Missing):
        members.append(("original", _state(envelope.original)))
    value = json_codec.encode(envelope)
    assert json_codec.decode(value) == envelope
    MESSAGE.validate(json.loads(value))
    return message_text(members)


def _provenance(record: Record, *, ordinal: bool) -> str:
    """What the codec says, without what README.md leaves out; the context to the letter."""
    provenance = record.envelope.provenance
    told = json.loads(json_codec.provenance_json(provenance))
    source = told.pop("source")
    shown = {name: source.pop(name) for name in ("table", "op")}
    for name in ("connector", "name", "database", "position", "transaction", "committedAt"):
        del source[name]
    if ordinal:
        shown["ordinal"] = provenance.source.position.ordinal
    stamped = told if provenance.stamp != DEFAULT_STAMP else {}
    texts = {name: _json(value) for name, value in {**stamped, "source": {**shown, **source}}.items()}
    if provenance.stamp.context is not None:
        texts["context"] = provenance.stamp.context
    return f"{{{', '.join(f'{_json(name)}: {text}' for name, text in texts.items())}}}"


def _place(place: Place) -> dict[str, Any]:
    return {"key": place.key, **({"partition": place.partition} if place.partition else {})}


def _state(state: Raw | None) -> str:
    """The state's own text, to the letter."""
    return "null" if state is None else bytes(state).decode()


def _columns(said: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What the log told of changed columns."""
    for event in said:
        if event["event"] == "columns changed":
            changed = {name: event[name] for name in ("added", "dropped", "retyped") if event[name]}
            if changed:
                yield message_text([("columns", _json({"table": event["table"], **changed}))])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
