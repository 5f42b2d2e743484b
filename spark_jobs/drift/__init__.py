"""Compares the changelog with the tables from which it was made. A difference between them is called drift."""
