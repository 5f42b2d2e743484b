"""Turns the messages of PostgreSQL's output plugin pgoutput into rows of the changelog. The package does no I/O."""
