"""Reads Debezium's change events, from topics of Kafka or from a Debezium engine that runs beside the service."""
