"""PostgreSQL and Kafka servers that need no installation, for the demo, tests and benchmarks."""
