"""Debezium in a process of its own, for any Python program: its connectors read a database, and a function gets events.

Applications import it as `changelog.debezium`. Nothing here knows the service, its sources or its sinks.
"""
