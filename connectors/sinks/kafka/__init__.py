"""The changelog on Kafka, exactly once. Only this package and `changelog.connectors.producer` know a Kafka client."""
