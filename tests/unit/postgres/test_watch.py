"""Tests what `Watch` does if an error occurs while it reads the catalogue. The tests do not connect to a server."""

from typing import Any, cast

import psycopg
import pytest

from changelog.connectors.sources.postgres import watch
from changelog.connectors.sources.postgres.admin import evidence
from changelog.connectors.sources.postgres.admin.check import Requirements
from changelog.connectors.sources.postgres.admin.evidence import Evidence
from changelog.connectors.sources.postgres.session.connection import translated
from changelog.connectors.sources.postgres.watch import Refusal, Watch
from changelog.envelope.errors import ChangelogError, Kind

CONNECTION: psycopg.Connection[Any] = cast(psycopg.Connection[Any], None)
MARK = 300


def evidence_at(lsn: int) -> Evidence:
    """Returns what a reading of the catalogue at this log position found. For each `lsn`, the tables are different."""
    return Evidence(lsn=lsn, horizon=900, tables=cast(Any, {"guest": lsn}))


@pytest.fixture
def open_watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Returns a watch that last read the catalogue at the log position 100. Its next reading is at 200."""
    monkeypatch.setattr(evidence, "read", lambda *_: evidence_at(200))
    monkeypatch.setattr(watch, "_mark", lambda _: MARK)
    requirements = Requirements(slot="s", publication="p", failover=False, entities=())
    return Watch("", requirements, evidence_at(100), covered=100, answer_s=1.0)


def refuse_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        with translated("reading the publication"):
            raise error

    monkeypatch.setattr(watch, "refuse", refuse)


def test_tables_that_cannot_be_published_are_refused(open_watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_with(ChangelogError(Kind.GAP, "the publication lacks the table"), monkeypatch)
    reading = open_watch._read(CONNECTION)
    assert isinstance(reading, Refusal)
    assert (str(reading.error), reading.until) == ("the publication lacks the table", MARK)


def test_an_error_of_the_server_is_raised_and_refuses_no_table(
    open_watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_with(psycopg.errors.InternalError_("cache lookup failed for relation 7"), monkeypatch)
    with pytest.raises(ChangelogError, match="cache lookup failed") as raised:
        open_watch._read(CONNECTION)
    assert raised.value.kind is Kind.PRECONDITION


@pytest.mark.parametrize("error", [psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable])
def test_a_reading_during_which_a_table_is_dropped_or_locked_is_repeated(
    open_watch: Watch, monkeypatch: pytest.MonkeyPatch, error: type[psycopg.Error]
) -> None:
    refuse_with(error("the table is locked or dropped"), monkeypatch)
    reading = open_watch._read(CONNECTION)
    assert isinstance(reading, watch.CatalogReading)
    assert (reading.evidence, reading.unlogged) == (evidence_at(100), ())
