"""Turns decoded rows into changelog rows. There are two paths: a simple path encodes single rows, and a faster path
encodes many rows at once. The simple path defines what is correct.
"""
