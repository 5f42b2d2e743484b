"""Opens sessions with a PostgreSQL server, limits their waits, and explains the waits."""
