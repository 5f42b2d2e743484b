"""Reads change events that Debezium makes, from topics of Kafka or from an engine that runs beside the service."""
