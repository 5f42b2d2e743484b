"""Renders changes in the form that consumers of Debezium expect: with Kafka Connect's schemas, in JSON or Avro."""
