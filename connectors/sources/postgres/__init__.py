"""PostgreSQL: its logical replication stream, and rows read from its tables, as envelopes."""
