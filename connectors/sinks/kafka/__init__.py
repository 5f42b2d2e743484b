"""Stores the changelog on Kafka, exactly once. Only this package and `connectors.producer` use a Kafka client."""
