"""Gives jobs access to the folders in which they store files, on any file system that Spark supports. A manifest or a
record says which of these files readers must use.
"""
