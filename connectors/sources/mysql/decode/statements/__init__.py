"""Finds out what the statements in the binary log do to tables and transactions."""
