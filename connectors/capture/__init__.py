"""Contains what all sources (readers of databases) share. Uses no SQL, no server's log positions, no client library."""
