"""Drift: whether the changelog equals the tables that it was made of."""
