"""A source whose database is in memory. It runs the code that all sources share, without a real database."""
