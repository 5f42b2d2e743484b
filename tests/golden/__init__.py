"""Golden tests: files with plain SQL, in which each statement is followed by its messages (see README.md)."""
