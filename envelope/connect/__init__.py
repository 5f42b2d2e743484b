"""Renders rows as consumers of Debezium read them: typed by Kafka Connect's schemas, in JSON or Avro."""
