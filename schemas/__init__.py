"""Defines the neutral column types, and the Avro schemas of published messages. This package imports nothing else of
the project.
"""
