"""The demo on Spark: `python -m changelog.spark_jobs.demo`."""
