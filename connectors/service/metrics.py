"""Defines the metrics of a running service. Their names are a contract, and are defined only here."""

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

COMMIT_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """One set of Prometheus metrics, and the `registry` that has them. Any thread may use the metrics."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # start time, memory, CPU time and open files of the process
        self.events = Counter(
            "changelog_events_total", "Envelopes stored durably.", ["entity", "op"], registry=registry
        )
        self.transactions = Counter("changelog_transactions_total", "Transactions stored durably.", registry=registry)
        self.lag_bytes = Gauge(
            "changelog_lag_bytes",
            "How many bytes of the server's log the changelog lacks.",
            registry=registry,
        )
        self.lag_seconds = Gauge(
            "changelog_lag_seconds",
            "Age of the oldest part of the server's log that the changelog lacks, in seconds; 0 if it lacks nothing.",
            registry=registry,
        )
        self.commit_seconds = Histogram(
            "changelog_commit_seconds",
            "Time that a commit of the sink takes.",
            buckets=COMMIT_SECONDS_BUCKETS,
            registry=registry,
        )
        self.original_unknown = Counter(
            "changelog_original_unknown_total",
            "Updates whose original was not in the log.",
            ["entity"],
            registry=registry,
        )
        self.stamps_invalid = Counter(
            "changelog_stamps_invalid_total",
            "Provenance stamps that were invalid.",
            registry=registry,
        )
        self.signals_ignored = Counter(
            "changelog_signals_ignored_total",
            "Signals that were malformed, not signed as configured, or for something that does not exist.",
            registry=registry,
        )
        self.repairs_open = Gauge("changelog_repairs_open", "Entities with a repair in progress.", registry=registry)
        self.restarts = Counter(
            "changelog_restarts_total", "Times that the stream was resumed after an error.", registry=registry
        )
        self.slot_retained_bytes = Gauge(
            "changelog_slot_retained_bytes", "Bytes of log that the server keeps for the slot.", registry=registry
        )
        self.windows_open = Gauge(
            "changelog_windows_open", "Windows that were requested and are not published yet.", registry=registry
        )
        self.snapshot_pages = Gauge(
            "changelog_snapshot_pages",
            "Pages that the table had when its reading was planned.",
            ["entity"],
            registry=registry,
        )
        self.snapshot_pages_read = Gauge(
            "changelog_snapshot_pages_read",
            "Pages of the table that are read and published.",
            ["entity"],
            registry=registry,
        )
        self.state_bytes = Gauge(
            "changelog_state_bytes", "Bytes that the state takes, on disk and in buffers.", registry=registry
        )
        self.state_restored_rows = Counter(
            "changelog_state_restored_rows_total",
            "Rows of the changelog from which the state was restored or brought forward.",
            registry=registry,
        )
        self.state_position = Info(
            "changelog_state_position", "The position of the last row that the state has.", registry=registry
        )
        self.position = Info("changelog_position", "The position of the last stored row.", registry=registry)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format 0.0.4."""
        return prometheus_client.generate_latest(self.registry)
