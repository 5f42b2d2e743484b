"""An oracle that shares no code with the product.

Triggers record every change, `test_decoding` gives the order of the commits, and docs/reference/types.md defines how
values are written.
"""
