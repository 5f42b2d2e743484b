"""Reads the source's side of a comparison, as of a fence: a snapshot of the database, at which both sides are
compared.
"""
