"""Stores a changelog in Kafka topics, each change exactly once, and reads it."""
