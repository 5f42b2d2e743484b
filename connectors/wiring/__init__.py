"""Opens the database and the changelog's store that the configuration names. Makes entities of the database's tables.

Only these modules know which folder implements which `kind` of source or sink.
"""
