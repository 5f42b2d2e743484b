"""Builds views, and writes them to their outputs. A view has the last state of each key. It is computed from the
changes of the keys.
"""
