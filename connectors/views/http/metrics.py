"""Defines the metrics of `changelog views serve`. Their names are a contract, and are defined only here."""

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

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

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format 0.0.4."""
        return prometheus_client.generate_latest(self.registry)
