"""Kafka: the changelog on a broker, exactly once. Only this package and `connectors.producer` know a Kafka client."""
