"""Runs Debezium in a process of its own, for any Python program, and passes its connectors' events to a function.

Applications import it as `changelog.debezium`. Nothing here knows the service, its sources or its sinks.
"""
