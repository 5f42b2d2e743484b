"""Converts rows to Kafka messages and back: keys, headers and values, in JSON or Avro."""
