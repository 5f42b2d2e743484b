"""Makes the report of `detect_drift`: decides what to do about drift, follows drift from run to run, and writes a page
for people and metrics for Prometheus.

This code uses neither Spark nor the network. It reads only reports, and the files of drifted keys beside them.
"""

from changelog.spark_jobs.drift.report.figures import prometheus
from changelog.spark_jobs.drift.report.finishing import finish, repaired
from changelog.spark_jobs.drift.report.policy import Policy, policies
from changelog.spark_jobs.drift.report.writing import read_earlier, write

__all__ = ["Policy", "finish", "policies", "prometheus", "read_earlier", "repaired", "write"]
