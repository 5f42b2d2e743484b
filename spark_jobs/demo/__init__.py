"""The demo on Spark: `python -m spark_jobs.demo`."""
