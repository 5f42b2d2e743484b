"""Follows a changelog, and hands the changes of a view to it in batches."""
