"""A source whose database is in memory. With it, tests run the capture core without PostgreSQL."""
