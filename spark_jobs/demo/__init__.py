"""The demo's chapters on Spark."""
