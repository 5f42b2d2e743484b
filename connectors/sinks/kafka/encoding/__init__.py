"""Rows as Kafka messages, and back: keys, headers and values, as JSON or Avro."""
