"""Processes many messages at once, as batches of Arrow columns: makes JSON and Avro, and reads JSON, by columns."""
