"""Handles many messages at once, as batches of Arrow columns. Reads and writes JSON and Avro column by column."""
