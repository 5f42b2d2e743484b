"""Many messages at once: batches of Arrow columns, and code that reads and writes JSON and Avro column by column."""
