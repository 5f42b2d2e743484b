"""Archiving: stores the changelog as a few sorted Parquet files for each entity and day."""
