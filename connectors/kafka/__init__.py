"""What the Kafka sink and the sources that read topics share: clients and their errors, offsets, ids, the registry."""
