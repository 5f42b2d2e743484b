"""Opens the database and the changelog's store that the configuration names, and makes entities of its tables.

Only these modules know which folder implements which `kind` of source or sink.
"""
