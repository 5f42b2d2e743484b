"""Many messages at once: batches as Arrow columns, and what reads and writes JSON and Avro by columns."""
