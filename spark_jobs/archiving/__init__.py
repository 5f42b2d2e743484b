"""Stores the changelog in an archive, which has a few sorted Parquet files for each entity and day."""
