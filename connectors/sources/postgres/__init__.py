"""The PostgreSQL source: turns the logical replication stream, and rows read from tables, into changelog messages."""
