"""Contains what all users of Kafka share: clients and their errors, offsets, ids of topics, and the schema registry."""
