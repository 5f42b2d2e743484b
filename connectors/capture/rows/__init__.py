"""From decoded rows to changelog rows: one at a time, which is the definition, and in blocks."""
