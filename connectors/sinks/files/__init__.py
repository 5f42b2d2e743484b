"""A changelog as Parquet files in a folder."""
