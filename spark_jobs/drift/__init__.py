"""Drift: compares the changelog with the tables that it was made from."""
