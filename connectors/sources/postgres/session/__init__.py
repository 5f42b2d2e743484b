"""Sessions with a PostgreSQL server: opening them, limiting their waits, and explaining the waits."""
