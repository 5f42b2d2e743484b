"""Runs the service: its publish loop, its health checks and its metrics."""
