"""What every database shares: no SQL, no log position of one server, no client library."""
