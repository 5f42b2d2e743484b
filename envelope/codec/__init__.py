"""Encodes single messages (*envelopes*) as bytes, in JSON or Avro, and decodes them."""
