"""Converts the values of Debezium's events to the JSON that we publish, according to their semantic types."""
