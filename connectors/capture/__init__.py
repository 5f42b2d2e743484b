"""The code that all sources share. It has no SQL, no log position of a particular server, and no client library."""
