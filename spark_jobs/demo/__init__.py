"""Runs the demo with its chapters on Spark: `python -m changelog.spark_jobs.demo`."""
