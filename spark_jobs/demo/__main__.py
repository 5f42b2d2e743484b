"""Runs the demo (`changelog.spark_jobs.demo.story`) as `python -m changelog.spark_jobs.demo`."""

import sys

from changelog.spark_jobs.demo.story import run

if __name__ == "__main__":
    sys.exit(run())
