"""Stores a changelog as Parquet files in a folder, and reads it."""
