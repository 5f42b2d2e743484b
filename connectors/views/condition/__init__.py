"""Evaluates the `where` condition of a served view on one row, with the same result as Spark's SQL.

`parse` reads the text, and `judge` compares values. A condition may have comparisons of a column with a value (`=`,
`<>`, `!=`, `<`, `<=`, `>`, `>=`), `IN`, `IS NULL`, `AND`, `OR`, `NOT` and parentheses. Everything else is refused.
"""
