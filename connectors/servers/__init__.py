"""Runs PostgreSQL, MySQL, MariaDB and Kafka servers without an installation, for the demo, tests and benchmarks."""
