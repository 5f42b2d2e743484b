"""Builds views, and writes them to their outputs. A view has the last state of each key, computed from the key's
changes.
"""
