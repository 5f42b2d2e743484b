"""Encodes single envelopes as bytes, in JSON or Avro, and decodes them."""
