"""Stores the changelog in an archive: a few sorted Parquet files for each entity and day."""
