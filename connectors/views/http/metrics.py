"""Defines the metrics of `changelog views serve`. Their names are a contract, and are defined only here."""

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from changelog.connectors.views.reporting import Pace
from changelog.connectors.views.served import Figures

SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ViewMetrics:
    """One set of metrics in its own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)  # start time, memory, CPU time and open files of the process
        self.requests = Counter(
            "changelog_view_requests_total", "Requests for rows of a view.", ["view", "status"], registry=registry
        )
        self.seconds = Histogram(
            "changelog_view_request_seconds",
            "Time that a request for rows takes, including its wait for a position.",
            ["view"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.expired = Counter(
            "changelog_view_waits_expired_total",
            "Requests that were refused because states were not new enough in time.",
            ["view"],
            registry=registry,
        )
        self.staleness = Gauge(
            "changelog_view_staleness_seconds",
            "Seconds from the last write of the changelog to the last request for rows.",
            registry=registry,
        )

        self.restored = Counter(
            "changelog_view_restored_messages_total", "Messages that were restored from Kafka.", registry=registry
        )
        self.restoring = Gauge(
            "changelog_view_restoring_offsets", "Offsets that this process still has to restore.", registry=registry
        )
        self.seconds_left = Gauge(
            "changelog_view_restore_seconds_left",
            "Estimated seconds until rows are restored and processed up to the newest checkpoint.",
            registry=registry,
        )
        self.lag = Gauge(
            "changelog_view_lag_offsets",
            "Offsets that the rows of an entity lack up to the newest checkpoint.",
            ["entity"],
            registry=registry,
        )
        self.standby_lag = Gauge(
            "changelog_view_standby_lag_offsets",
            "Offsets that the standbys in this process lack up to the newest checkpoint.",
            ["entity"],
            registry=registry,
        )
        self.store_bytes = Gauge("changelog_view_store_bytes", "Bytes of the stores on disk.", registry=registry)
        self._restored, self._pace = 0, Pace()

    def take(self, figures: Figures) -> None:
        """Sets the metrics that say how far an engine has restored its rows."""
        self.restored.inc(max(figures.restored - self._restored, 0))
        self._restored = figures.restored
        self.restoring.set(figures.restoring)
        self.seconds_left.set(self._pace.seconds_left(figures.left) or 0.0)
        for entity, lag in figures.lags.items():
            self.lag.labels(entity).set(lag)
            self.standby_lag.labels(entity).set(figures.standby_lags[entity])
        self.store_bytes.set(figures.store_bytes)

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format 0.0.4."""
        return prometheus_client.generate_latest(self.registry)
