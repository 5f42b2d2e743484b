"""Connectors: what reads database logs, what stores changelogs, and the service between them."""
