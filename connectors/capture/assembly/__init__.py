"""Makes changelog rows from the rows that a decoder reads from a database's log, and inserts rows of table reads."""
