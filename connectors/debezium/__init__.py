"""Runs Debezium in a process of its own, and passes the events of its connectors to a function of a Python program.

Applications import it as `changelog.debezium`. Nothing here knows the service, its sources or its sinks.
"""
