"""Sessions with a PostgreSQL server: how they are opened, how long they wait, and for what."""
