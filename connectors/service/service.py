"""Runs the publish loop with the configured source and sink, and serves the service's metrics and health."""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from changelog.connectors import failpoints
from changelog.connectors.capture.tables.table_progress import is_complete
from changelog.connectors.config import Config
from changelog.connectors.service.health import HealthServer, HealthState
from changelog.connectors.service.loop import Cadence, Observer, publish
from changelog.connectors.service.metrics import Metrics
from changelog.connectors.service.snapshot_progress import SnapshotProgress
from changelog.connectors.service.state_metrics import StateMetrics
from changelog.connectors.service.systemd import Manager
from changelog.connectors.show import SnapshotBar, size
from changelog.connectors.sinks import Sink
from changelog.connectors.sources import ChangeSource, Recover
from changelog.connectors.state.before_images import BeforeImages
from changelog.connectors.wiring import sources
from changelog.connectors.wiring.sinks import open_sink
from changelog.connectors.wiring.sources import StoredChangelog, read_entities
from changelog.connectors.wiring.state import open_state
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op

SAMPLE_S = 5.0
LAG_SAMPLES_MAX = 17_280  # one day of samples
STOPPED_AT_ONCE = 143
RECONNECTING = "reconnecting"
LOG_AGAIN_S = (SAMPLE_S, 300.0)
"""The first and the longest interval between log lines about the same wait. Each interval is twice as long as the one
before, up to the longest.
"""


_UPDATE = pa.scalar(Op.UPDATE.value)

_log = structlog.get_logger("service")


class Service:
    """The service of one configuration. `run` returns after the service was stopped."""

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
        self._state = HealthState(config.name)
        self._metrics = Metrics()
        self._watch = _Watch(self._state, self._metrics)
        self._database = sources.database(config, stopping=self._stop.is_set, alive=self._state.beat)

    def run(self) -> None:
        """Publishes until SIGTERM or SIGINT; a second such signal ends the process at once. Raises ChangelogError."""
        config = self._config
        with (
            self._signals(),
            self._opened_state() as state,
            closing(open_sink(config, reach=self._reach, stopping=self._stop.is_set)) as sink,
            self._health() as health,
            nullcontext() if self._manager is None else self._manager.watching(lambda: self._state.live),
        ):
            _log.info("service started", name=config.name, listen=health.listen)
            sampler = threading.Thread(target=self._sample, name="sampler", daemon=True)
            sampler.start()
            try:
                publish(
                    partial(self._open, sink),
                    sink,
                    stop=self._stop,
                    state=state,
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
                self._log_retained()

    def stop(self) -> None:
        """Asks `run` to store what it has read and to return."""
        self._stop.set()

    def _open(self, sink: Sink, recover: Recover) -> ChangeSource:
        """Resolves the entities from the present tables, prepares the sink for them, and opens the source."""
        entities = read_entities(self._config, self._database)
        sink.prepare(entities)
        self._watch.source = self._database.open(
            entities,
            recover,
            StoredChangelog(self._config),
            accept_settings=self._accept_settings,
            accept_cluster=self._accept_cluster,
            reach=self._reach,
        )
        return self._watch.source

    @contextmanager
    def _opened_state(self) -> Iterator[BeforeImages | None]:
        """Opens the state, if one is configured."""
        state = open_state(
            self._config,
            watcher=StateMetrics(self._metrics),
            stopping=self._stop.is_set,
            alive=self._state.beat,
        )
        with nullcontext() if state is None else closing(state):
            yield state

    @contextmanager
    def _health(self) -> Iterator[HealthServer]:
        """Serves `/live`, `/ready` and `/metrics`.

        If the address is in use, raises ChangelogError. If the database shows that a service with the same name already
        runs, the message says so; otherwise, it says that the address is not available.
        """
        try:
            server = HealthServer(self._config.service.address, self._state, self._metrics.text)
        except ChangelogError:
            self._database.refuse_if_read()
            raise
        with server:
            yield server

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Handles SIGTERM and SIGINT while the service runs, if it runs in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._stop.is_set():
            os._exit(STOPPED_AT_ONCE)
        self._stop.set()

    def _sample(self) -> None:
        """Asks the database for its status every `SAMPLE_S` seconds, and updates the metrics that depend on this."""
        lag = Lag()
        while not self._stop.wait(SAMPLE_S):
            through = self._watch.through
            try:
                status = self._database.status(through)
            except ChangelogError:
                self._watch.waits(None)
                continue  # the loop itself reports that the connection is lost, and connects again
            self._watch.waits(status.waits_for)
            if status.retained is not None:
                self._metrics.slot_retained_bytes.set(status.retained.nbytes)
            if through:  # before the first turn, the whole log would count as lag
                self._metrics.lag_bytes.set(status.lag_bytes)
            self._metrics.lag_seconds.set(lag.sample(time.monotonic(), status.end, through))

    def _log_retained(self) -> None:
        """Reports how much of its log the database retains for the stopped service. Reports nothing if the database
        cannot be reached.
        """
        kept_log = None if self._state.phase == RECONNECTING else self._database.retained()
        if kept_log is not None:
            _log.info("service stopped", **kept_log.holder, retained=size(kept_log.nbytes), note=kept_log.note)


class Lag:
    """Measures how many seconds the changelog lags behind the end of the database's log."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, str]] = deque(maxlen=LAG_SAMPLES_MAX)

    def sample(self, now: float, end: str, through: str) -> float:
        """Takes a sample and returns the lag in seconds.

        `end` is the end of the log at the time `now`. The changelog is complete up to `through`. Both are places in the
        log, written as in `Checkpoint.through`, or empty texts, which sort before all places.

        The lag is 0 if `through` has reached `end`. Otherwise it is the time since the last sample at which the log
        ended at or before `through`. If there is no such sample, it is the time since the oldest sample.
        """
        self._ends.append((now, end))
        if through >= end:
            return 0.0
        reached_at = [at for at, earlier in self._ends if earlier <= through]
        return now - (reached_at[-1] if reached_at else self._ends[0][0])


class _Watch(Observer):
    """Reports the loop's events in log lines, on the terminal and in metrics."""

    def __init__(self, state: HealthState, metrics: Metrics) -> None:
        self._state, self._metrics = state, metrics
        self._bar = SnapshotBar(sys.stderr)
        self._progress = SnapshotProgress(metrics, quiet=sys.stderr.isatty())
        self._logged_waiting: tuple[int, ...] = ()
        self._log_at, self._log_again_s = 0.0, LOG_AGAIN_S[0]
        self.source: ChangeSource | None = None
        self.through = ""

    def turned(self, through: str) -> None:
        """See `Observer`."""
        self._state.beat()
        self.through = through
        if self.source is None:
            return
        activity = self.source.activity()
        self._metrics.windows_open.set(activity.windows_open)
        self._metrics.stamps_invalid.inc(activity.invalid_stamps)
        self._metrics.signals_ignored.inc(activity.ignored_signals)
        if activity.waiting != self._logged_waiting:
            self._logged_waiting = self._state.waits_for = activity.waiting
            if self._logged_waiting:
                _log.info("snapshot waits for older transactions to end", transactions=self._logged_waiting)

    def waits(self, reason: str | None) -> None:
        """Records why the database server sends nothing. `reason` is None if it is unknown, or if the server sends.

        The sampler calls this every few seconds.
        """
        now = time.monotonic()
        if reason != self._state.waiting:
            self._state.waiting = reason
            self._log_at, self._log_again_s = now, LOG_AGAIN_S[0]
        if reason is not None and now >= self._log_at:
            _log.warning("the server sends nothing yet", why=reason)
            self._log_at = now + self._log_again_s
            self._log_again_s = min(2 * self._log_again_s, LOG_AGAIN_S[1])

    def started(self, checkpoint: Checkpoint | None) -> None:
        """See `Observer`."""
        position = None if checkpoint is None or checkpoint.position is None else str(checkpoint.position)
        _log.info("streaming", after=position)
        self.waits(None)
        self._enter({} if checkpoint is None else checkpoint.windows)
        self._metrics.repairs_open.set(0 if checkpoint is None else len(checkpoint.repairs.get("open", ())))

    def _enter(self, windows: Mapping[str, Mapping[str, Any]]) -> None:
        is_reading = not windows or not all(is_complete(progress) for progress in windows.values())
        self._state.enter("snapshot" if is_reading else "streaming", ready=True)

    def interrupted(self, error: ChangelogError, wait_s: float) -> None:
        """See `Observer`."""
        self._metrics.restarts.inc()
        self._state.enter(RECONNECTING, ready=False)
        if error.kind is Kind.ALTERED:
            _log.info("opening the source again", why=str(error), in_s=round(wait_s, 1))
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
        counts = table.group_by(["entity", "op"]).aggregate([([], "count_all"), ("unknown", "sum")])
        for row in counts.to_pylist():
            self._metrics.events.labels(row["entity"], row["op"]).inc(row["count_all"])
            if row["unknown_sum"]:
                self._metrics.original_unknown.labels(row["entity"]).inc(row["unknown_sum"])

    def close(self) -> None:
        """Ends the progress bar."""
        self._bar.close()
