"""Makes changelog rows of decoded rows: one at a time, which defines the result, or many at once, which is faster."""
