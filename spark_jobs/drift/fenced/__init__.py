"""The PostgreSQL side of a comparison: the snapshot that both sides are cut by, and the scan under it."""
