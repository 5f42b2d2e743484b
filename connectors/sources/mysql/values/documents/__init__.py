"""JSON in the binary log: documents, and the differences between two of them."""
