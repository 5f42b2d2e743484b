"""A source whose database is in memory. With it, tests run the code that all sources share without a real database."""
