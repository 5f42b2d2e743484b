"""A source whose database is in memory. With it, tests need no real database to run the code that all sources share."""
