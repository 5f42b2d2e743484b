"""Reads the source's side of a comparison under a fence. The fence is the snapshot of the database as of which both
sides are compared.
"""
