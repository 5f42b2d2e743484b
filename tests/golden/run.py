"""Runs the statements of a golden script on a server, and reads their changes as the service reads them."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import structlog
from msgspec import Raw

from changelog.connectors.config import Config
from changelog.connectors.sources import ChangeSource
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.codec import json_codec
from changelog.envelope.columnar import batch
from changelog.envelope.errors import RETRIED, ChangelogError
from changelog.envelope.model import Missing, Place, Record, Stamp
from tests.golden.script import Script, Step, message_text
from tests.message_schema import MESSAGE
from tests.patience import PATIENCE_S

SCHEMA = "public"
"""The schema in the names of tables in the files. It is replaced by `GoldenDatabase.schema`."""

OF_THE_FILE = ("server", "mysql", "ordinals")
"""Settings at the top of a golden file that are not settings of the service."""

DEFAULT_STAMP = Stamp(api_version="unknown", service_name="unknown", identifier="")


class GoldenDatabase(Protocol):
    """A database with the session in which a script runs."""

    @property
    def schema(self) -> str:
        """The schema in which the tables of the script really are. The files call it `public`."""

    @property
    def source(self) -> Mapping[str, Any]:
        """The section `[source]` of the configuration."""

    @property
    def in_transaction(self) -> bool:
        """Whether the session has an open transaction."""

    def execute(self, statement: str) -> None:
        """Runs a statement of the script."""

    def open(self, config: Config, recover: Callable[[], Checkpoint | None]) -> ChangeSource:
        """Opens the source. The source continues at the checkpoint that `recover` returns."""

    def end_of_log(self) -> int:
        """Returns the present end of the server's log. The source reaches it even if nobody writes any more."""

    def through(self, checkpoint: Checkpoint) -> int:
        """Returns the position in the server's log up to which the checkpoint includes all changes."""


def run_golden(script: Script, database: GoldenDatabase) -> list[list[str]]:
    """Runs the script. Returns the output of each step as JSON texts: its messages, the errors at which the source
    stopped, and the columns that changed.
    """
    changelog = _Changelog(database, script.config)
    try:
        return [
            [text.replace(f"{database.schema}.", f"{SCHEMA}.") for text in _run(step, database, changelog)]
            for step in script.steps
        ]
    finally:
        changelog.close()


def _run(step: Step, database: GoldenDatabase, changelog: "_Changelog") -> Iterator[str]:
    match step.command:
        case ():
            assert step.sql is not None
            database.execute(step.sql)
        case ("run" | "restart",):
            changelog.open()
        case ("accept", decision):
            changelog.accept(decision)
        case other:
            raise ValueError(f"unknown command {' '.join(other)}")
    if changelog.is_open and not database.in_transaction:
        yield from changelog.read()


class _Changelog:
    """A source that can be closed and opened again at its last checkpoint. The checkpoint is kept only in memory."""

    def __init__(self, database: GoldenDatabase, config: Mapping[str, Any]) -> None:
        settings = {name: value for name, value in config.items() if name not in OF_THE_FILE}
        text = json.dumps(settings).replace(f"{SCHEMA}.", f"{database.schema}.")
        self._config = Config.model_validate(
            {"name": "golden", "source": database.source, "sink": {"path": "unused"}, **json.loads(text)}
        )
        self._database = database
        self._ordinals = config.get("ordinals", True)
        self._source: ChangeSource | None = None
        self._checkpoint: Checkpoint | None = None
        self._stop: ChangelogError | None = None

    @property
    def is_open(self) -> bool:
        return self._source is not None and self._stop is None

    def open(self) -> None:
        self.close()
        self._source = self._database.open(self._config, lambda: self._checkpoint)

    def accept(self, decision: str) -> None:
        """Does what `changelog accept` does, and opens the source again."""
        assert self._stop is not None
        assert self._stop.position is not None
        assert self._checkpoint is not None
        decisions = self._checkpoint.decisions.accept(self._stop.position, decision)
        self._checkpoint = replace(self._checkpoint, decisions=decisions)
        self._stop = None
        self.open()

    def read(self) -> Iterator[str]:
        """Reads up to the present end of the server's log. Yields each message and each change of a table's columns as
        JSON text. If the source stops with an error, the last text is this error.
        """
        assert self._source is not None
        target = self._database.end_of_log()
        deadline = time.monotonic() + PATIENCE_S
        while not self._reached(target):
            assert time.monotonic() < deadline, "the source did not reach the end of the log in time"
            with structlog.testing.capture_logs() as log_events:
                try:
                    piece = self._source.read(0.05)
                except ChangelogError as error:
                    if error.kind in RETRIED:
                        raise
                    self._stop = error
                    yield message_text([("stop", json.dumps(error.message))])
                    return
            yield from _columns(log_events)
            if piece is not None:
                self._checkpoint = piece.checkpoint
                self._source.confirm(piece.checkpoint)
                records = (record for rows in piece.rows for record in batch.records(rows))
                yield from (_message(record, ordinal=self._ordinals) for record in records)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _reached(self, target: int) -> bool:
        stored = self._checkpoint
        return (
            stored is not None
            and self._database.through(stored) >= target
            and all(window["complete"] for window in stored.windows.values())
        )


def _message(record: Record, *, ordinal: bool) -> str:
    """Returns the record in the form that README.md in this folder describes, as JSON text."""
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
    """Returns the provenance as JSON text. Leaves out the members that README.md names. Shows the context as exactly
    the text that the record has.
    """
    provenance = record.envelope.provenance
    members = json.loads(json_codec.provenance_json(provenance))
    source = members.pop("source")
    shown = {name: source.pop(name) for name in ("table", "op")}
    for name in ("connector", "name", "database", "position", "transaction", "committedAt"):
        del source[name]
    if ordinal:
        shown["ordinal"] = provenance.source.position.ordinal
    stamped = members if provenance.stamp != DEFAULT_STAMP else {}
    texts = {name: _json(value) for name, value in {**stamped, "source": {**shown, **source}}.items()}
    if provenance.stamp.context is not None:
        texts["context"] = provenance.stamp.context
    return f"{{{', '.join(f'{_json(name)}: {text}' for name, text in texts.items())}}}"


def _place(place: Place) -> dict[str, Any]:
    return {"key": place.key, **({"partition": place.partition} if place.partition else {})}


def _state(state: Raw | None) -> str:
    """Returns the exact text of a row, or `null` if there is no row."""
    return "null" if state is None else bytes(state).decode()


def _columns(log_events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a text for each change of a table's columns that the source logged."""
    for event in log_events:
        if event["event"] == "columns changed":
            changed = {name: event[name] for name in ("added", "dropped", "retyped") if event[name]}
            if changed:
                yield message_text([("columns", _json({"table": event["table"], **changed}))])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
