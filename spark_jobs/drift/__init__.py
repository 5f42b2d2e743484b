"""Compares the changelog with the tables that it was made from. A difference between them is called drift."""
