"""Contains what all jobs share: command-line arguments, the Spark session, errors and metrics."""
