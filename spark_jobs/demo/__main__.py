"""`python -m changelog.spark_jobs.demo`: see `changelog.spark_jobs.demo.story`."""

import sys

from changelog.spark_jobs.demo.story import run

if __name__ == "__main__":
    sys.exit(run())
