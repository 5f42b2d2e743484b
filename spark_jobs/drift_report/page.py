"""The report as one HTML file."""

from spark_jobs.drift_report.shape import Report


def page(report: Report) -> str:
    """The page of a report."""
    return f"<!doctype html><title>Drift report</title>{report.verdict}"
