"""The report of `detect_drift`: what to do, what happened to earlier drift, a page for people, figures.

No Spark and no network: everything here is from reports and the files of drifted keys beside them.
"""

from changelog.spark_jobs.drift.report.figures import prometheus
from changelog.spark_jobs.drift.report.finishing import finish, repaired
from changelog.spark_jobs.drift.report.policy import Policy, policies
from changelog.spark_jobs.drift.report.writing import read_earlier, write

__all__ = ["Policy", "finish", "policies", "prometheus", "read_earlier", "repaired", "write"]
