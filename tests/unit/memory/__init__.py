"""A source whose database is in memory. The source runs the code that all sources share, without a real database."""
