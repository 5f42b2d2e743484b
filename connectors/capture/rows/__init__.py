"""Turns decoded rows into changelog rows. A simple path, which defines what is correct, encodes single rows; a faster
one encodes many at once.
"""
