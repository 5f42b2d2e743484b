"""Decodes messages in Avro: compiles a reader for each schema, and falls back on fastavro for unusual values."""
