"""Describes columns, converts their values in the binary log to text, and handles the ids of transactions."""
