"""Reads a database through Debezium's engine, which runs in a Java process beside the service."""
