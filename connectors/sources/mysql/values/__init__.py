"""Columns, their values in the binary log, and ids of transactions."""
