"""Reads Debezium's events from Kafka topics. A part of this input is a partition, and its progress is an offset."""
