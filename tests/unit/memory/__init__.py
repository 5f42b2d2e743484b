"""A source that keeps its database in memory: the capture core without PostgreSQL."""
