"""The code that all sources share. It has no SQL, no log position of one kind of server, and no client library."""
