"""The changelog on Kafka, exactly once. Only this package and `connectors.producer` know a Kafka client."""
