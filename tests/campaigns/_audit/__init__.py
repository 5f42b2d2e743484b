"""Judges a changelog without any code of the product.

Triggers record every change, PostgreSQL's plugin `test_decoding` gives the order of the commits, and
docs/reference/types.md defines how values are written.
"""
