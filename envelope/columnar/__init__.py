"""Processes many messages at once, as batches of Arrow columns: encodes them as JSON or Avro, and decodes JSON."""
