"""A migration tried on a live database and rolled back, or tried on an empty copy."""
