"""Reads Debezium's events from Kafka topics. The parts of this input are partitions, and their progress is offsets."""
