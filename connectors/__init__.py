"""Reads database logs, stores changelogs, and runs the service that makes a changelog of a log."""
