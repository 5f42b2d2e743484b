"""Describes columns, prints their values from the binary log, and handles the ids of transactions."""
