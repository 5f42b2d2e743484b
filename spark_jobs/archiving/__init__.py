"""Archiving: the changelog as a few sorted Parquet files for each entity and day, and how long they are kept."""
