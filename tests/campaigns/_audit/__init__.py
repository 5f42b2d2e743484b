"""Judges a changelog without any code of the product.

Triggers record every change of the tables. PostgreSQL's plugin `test_decoding` says in which order the transactions
were committed, and docs/reference/types.md says which JSON the changelog must have for each value.
"""
