"""Evaluates the `where` of a served view on one row: a part of Spark's SQL, with the result that Spark has.

`parse` reads the text, and `judge` compares values. What is not in the part is refused, never guessed: comparisons of a
column with a value (`=`, `<>`, `!=`, `<`, `<=`, `>`, `>=`), `IN`, `IS NULL`, `AND`, `OR`, `NOT` and parentheses.
"""
