"""`python -m spark_jobs.demo`: see `spark_jobs.demo.story`."""

import sys

from spark_jobs.demo.story import run

if __name__ == "__main__":
    sys.exit(run())
