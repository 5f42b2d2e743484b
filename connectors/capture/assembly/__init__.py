"""Makes rows of the changelog from the rows that a decoder reads from a log, and inserts the rows of table reads."""
