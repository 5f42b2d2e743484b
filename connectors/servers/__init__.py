"""PostgreSQL and Kafka that need no installation, for the demo, tests and benchmarks."""
