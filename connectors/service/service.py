"""The connector service: configuration, source, sink, metrics and signals wired together."""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from connectors import failpoints
from connectors.capture.tables.table_progress import is_complete
from connectors.config import Config
from connectors.service.health import HealthServer, State
from connectors.service.loop import Cadence, Observer, publish
from connectors.service.metrics import Metrics
from connectors.service.snapshot_progress import SnapshotProgress
from connectors.service.systemd import Manager
from connectors.show import SnapshotBar, size
from connectors.sinks import Sink
from connectors.sources import Recover
from connectors.sources.postgres.admin.catalog import read_tables
from connectors.sources.postgres.admin.slot import SlotState, slot_state
from connectors.sources.postgres.session import waits
from connectors.sources.postgres.session.connection import connect, translated
from connectors.sources.postgres.session.patience import Patience, PatientConnection
from connectors.sources.postgres.source import CATALOG_SETTINGS, PostgresSource, Settings
from connectors.wiring import entities
from connectors.wiring.sinks import open_log, open_sink, read_versions
from envelope.checkpoint import Checkpoint
from envelope.entity import Entity
from envelope.errors import ChangelogError, Kind
from envelope.model import Op

SAMPLE_S = 5.0
LAG_SAMPLES_MAX = 17_280  # a day
STOPPED_AT_ONCE = 143
RECONNECTING = "reconnecting"
SAY_AGAIN_S = (SAMPLE_S, 300.0)
"""What the server waits for is logged again after the first of these, then ever later, at least each of the second."""

_SLOT_PATIENCE_S = 5.0
_GLANCE_S = 3.0

_UPDATE = pa.scalar(Op.UPDATE.value)

_log = structlog.get_logger("service")


class Service:
    """One service, from its configuration; `run` returns when it was stopped."""

    def __init__(
        self,
        config: Config,
        *,
        accept_settings: bool = False,
        accept_cluster: bool = False,
        reach: failpoints.Reach = failpoints.nowhere,
        manager: Manager | None = None,
    ) -> None:
        self._config, self._manager = config, manager
        self._accept_settings, self._accept_cluster = accept_settings, accept_cluster
        self._reach = reach
        self._stop = threading.Event()
        self._state = State(config.name)
        self._metrics = Metrics()
        self._watch = _Watch(self._state, self._metrics)
        self._sessions: set[int] = set()

    def run(self) -> None:
        """Publishes until SIGTERM or SIGINT; a second one ends the process at once. Raises ChangelogError."""
        config = self._config
        with (
            self._signals(),
            closing(open_sink(config, reach=self._reach, stopping=self._stop.is_set)) as sink,
            self._health() as health,
            nullcontext() if self._manager is None else self._manager.watching(lambda: self._state.live),
        ):
            _log.info("service started", name=config.name, listen=f"{health.address[0]}:{health.address[1]}")
            sampler = threading.Thread(target=self._sample, name="sampler", daemon=True)
            sampler.start()
            try:
                publish(
                    partial(self._open, sink),
                    sink,
                    stop=self._stop,
                    cadence=Cadence(
                        seconds=config.sink.commit_seconds,
                        nbytes=config.sink.commit_bytes,
                        rows=config.sink.commit_rows,
                    ),
                    observer=self._watch,
                    reach=self._reach,
                )
            finally:
                self._stop.set()
                self._watch.close()
                self._say_retained()

    def stop(self) -> None:
        """Asks `run` to store what it has read, and to return."""
        self._stop.set()

    def _open(self, sink: Sink, recover: Recover) -> PostgresSource:
        settings = replace(
            source_settings(self._config),
            accept_settings=self._accept_settings,
            accept_cluster=self._accept_cluster,
            sessions=self._sessions,
            stopping=self._stop.is_set,
            alive=self._state.beat,
        )
        self._watch.source = open_source(self._config, settings, sink, recover, reach=self._reach)
        return self._watch.source

    @contextmanager
    def _health(self) -> Iterator[HealthServer]:
        """Serves health; where the address is taken by a service of the same name, says so."""
        try:
            server = HealthServer(self._config.service.address, self._state, self._metrics.text)
        except ChangelogError:
            slot = self._slot()
            if slot is not None:
                slot.refuse_if_read()
            raise
        with server:
            yield server

    def _slot(self) -> SlotState | None:
        """The slot as it is; None where the database cannot be asked, or does not answer soon."""
        deadline = time.monotonic() + _GLANCE_S
        patience = Patience(stopping=lambda: time.monotonic() > deadline, stopping_s=0.0)
        try:
            with connect(self._config.source.dsn, patience=patience) as connection:
                return slot_state(connection, self._config.slot)
        except ChangelogError:
            return None

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Handles signals while the service runs, where it runs in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        kept = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop.is_set():
            os._exit(STOPPED_AT_ONCE)
        self._stop.set()

    def _sample(self) -> None:
        """Keeps the metrics that must be asked for."""
        lag = Lag()
        patience = Patience(silence_s=self._config.source.query_timeout_seconds, stopping=self._stop.is_set)
        while not self._stop.wait(SAMPLE_S):
            try:
                with connect(self._config.source.dsn, patience=patience) as connection, translated("sampling"):
                    slot = slot_state(connection, self._config.slot)
                    self._watch.waits(self._waits(connection, slot))
                    [(end,)] = connection.execute("SELECT (pg_current_wal_lsn() - '0/0')::int8").fetchall()
            except ChangelogError:
                self._watch.waits(None)
                continue  # the loop reports a lost database, and waits for it
            if slot is not None and slot.retained_bytes is not None:
                self._metrics.slot_retained_bytes.set(slot.retained_bytes)
            nbytes, seconds = lag.sample(time.monotonic(), end, self._watch.through_lsn)
            self._metrics.lag_bytes.set(nbytes)
            self._metrics.lag_seconds.set(seconds)

    def _waits(self, connection: PatientConnection, slot: SlotState | None) -> str | None:
        """Why our session sends nothing; None when another reads the slot."""
        pid = None if slot is None else slot.active_pid
        return waits.reason(connection, pid) if pid is not None and pid in self._sessions else None

    def _say_retained(self) -> None:
        """A stopped service still costs its database: the slot keeps log."""
        slot = None if self._state.phase == RECONNECTING else self._slot()  # who waits to stop waits no longer
        if slot is not None and slot.retained_bytes is not None:
            _log.info(
                "service stopped",
                slot=self._config.slot,
                retained=size(slot.retained_bytes),
                note="the slot keeps log until the service runs again or `changelog drop --slot`",
            )


def source_settings(config: Config) -> Settings:
    """What the source is told of the configuration."""
    return Settings(
        name=config.name,
        dsn=config.source.dsn,
        slot=config.slot,
        publication=config.publication,
        failover=config.source.failover,
        hmac_key=b"" if config.mask is None else config.mask.key.encode(),
        signals_secret=config.signals_secret,
        codec=config.codec,
        workers=config.source.snapshot_workers,
        chunk_pages=config.source.snapshot_pages,
        patience_s=_SLOT_PATIENCE_S,
        answer_s=config.source.query_timeout_seconds,
        read_s=config.source.read_timeout_seconds,
    )


def open_source(
    config: Config, settings: Settings, sink: Sink, recover: Recover, *, reach: failpoints.Reach
) -> PostgresSource:
    """The source of the entities that the database's tables make now; the sink has room for them."""
    resolved = read_entities(config, stopping=settings.stopping)
    sink.prepare(resolved)
    return PostgresSource(
        settings,
        resolved,
        recover,
        lambda: read_versions(open_log(config)),
        lambda entity, key: open_log(config).read(entity=entity, key=key),
        reach=reach,
    )


def read_entities(config: Config, *, stopping: Callable[[], bool] = lambda: False) -> list[Entity]:
    """The entities that the configuration makes of the database's tables; a wait for these ends with `stopping`."""
    patience = Patience(silence_s=config.source.query_timeout_seconds, stopping=stopping)
    with connect(config.source.dsn, settings=CATALOG_SETTINGS, patience=patience) as connection:
        return entities.resolve(config, read_tables(connection))


class Lag:
    """How far behind the server's log end the service is: in bytes, and since when the end is where it is now."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque(maxlen=LAG_SAMPLES_MAX)

    def sample(self, now: float, end: int, through_lsn: int) -> tuple[int, float]:
        """Bytes and seconds, `end` being the server's log end `now`."""
        self._ends.append((now, end))
        if through_lsn >= end:
            return 0, 0.0
        passed = [at for at, lsn in self._ends if lsn <= through_lsn]
        return end - through_lsn, now - (passed[-1] if passed else self._ends[0][0])


class _Watch(Observer):
    """Tells people and metrics what the loop does."""

    def __init__(self, state: State, metrics: Metrics) -> None:
        self._state, self._metrics = state, metrics
        self._bar = SnapshotBar(sys.stderr)
        self._progress = SnapshotProgress(metrics, quiet=sys.stderr.isatty())
        self._said_waiting: tuple[int, ...] = ()
        self._say_at, self._say_again_s = 0.0, SAY_AGAIN_S[0]
        self.source: PostgresSource | None = None
        self.through_lsn = 0

    def turned(self, through_lsn: int) -> None:
        """See `Observer`."""
        self._state.beat()
        self.through_lsn = through_lsn
        if self.source is None:
            return
        self._metrics.windows_open.set(self.source.windows_open)
        self._metrics.stamps_invalid.inc(self.source.take_invalid_stamps())
        self._metrics.signals_ignored.inc(self.source.take_ignored_signals())
        if self.source.waiting != self._said_waiting:
            self._said_waiting = self._state.waits_for = self.source.waiting
            if self._said_waiting:
                _log.info("snapshot waits for older transactions to end", transactions=self._said_waiting)

    def waits(self, reason: str | None) -> None:
        """Why the server sends nothing, if that is known; called by the sampler, every few seconds."""
        now = time.monotonic()
        if reason != self._state.waiting:
            self._state.waiting = reason
            self._say_at, self._say_again_s = now, SAY_AGAIN_S[0]
        if reason is not None and now >= self._say_at:
            _log.warning("the server sends nothing yet", why=reason)
            self._say_at = now + self._say_again_s
            self._say_again_s = min(2 * self._say_again_s, SAY_AGAIN_S[1])

    def started(self, checkpoint: Checkpoint | None) -> None:
        """See `Observer`."""
        position = None if checkpoint is None or checkpoint.position is None else str(checkpoint.position)
        _log.info("streaming", after=position)
        self.waits(None)
        self._enter({} if checkpoint is None else checkpoint.windows)
        self._metrics.repairs_open.set(0 if checkpoint is None else len(checkpoint.repairs.get("open", ())))

    def _enter(self, windows: Mapping[str, Mapping[str, Any]]) -> None:
        reading = not windows or not all(is_complete(stored) for stored in windows.values())
        self._state.enter("snapshot" if reading else "streaming", ready=True)

    def interrupted(self, error: ChangelogError, wait_s: float) -> None:
        """See `Observer`."""
        self._metrics.restarts.inc()
        self._state.enter(RECONNECTING, ready=False)
        if error.kind is Kind.ALTERED:
            _log.info("opening the source anew", why=str(error), in_s=round(wait_s, 1))
        else:
            _log.warning("connection lost", error=str(error), retry_in_s=round(wait_s, 1))

    def committed(self, rows: Sequence[pa.RecordBatch], checkpoint: Checkpoint, seconds: float) -> None:
        """See `Observer`."""
        self._enter(checkpoint.windows)
        self._metrics.repairs_open.set(len(checkpoint.repairs.get("open", ())))
        self._bar.update(checkpoint.windows)
        self._progress.update(checkpoint.windows)
        self._metrics.commit_seconds.observe(seconds)
        if checkpoint.position is not None:
            self._metrics.position.info({"position": str(checkpoint.position)})
        if rows:
            self._count(pa.Table.from_batches(rows))

    def _count(self, rows: pa.Table) -> None:
        self._metrics.transactions.inc(pc.count_distinct(rows.column("transaction")).as_py())
        unknown = pc.and_(pc.equal(rows.column("op"), _UPDATE), pc.invert(rows.column("original")))
        table = pa.table({"entity": rows.column("entity"), "op": rows.column("op"), "unknown": unknown})
        counted = table.group_by(["entity", "op"]).aggregate([([], "count_all"), ("unknown", "sum")])
        for row in counted.to_pylist():
            self._metrics.events.labels(row["entity"], row["op"]).inc(row["count_all"])
            if row["unknown_sum"]:
                self._metrics.original_unknown.labels(row["entity"]).inc(row["unknown_sum"])

    def close(self) -> None:
        """Ends the progress bar."""
        self._bar.close()
