"""Reads database logs, stores changelogs, and runs the service that connects the two."""
