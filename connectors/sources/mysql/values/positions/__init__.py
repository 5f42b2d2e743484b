"""Handles ids of transactions, and places in the binary log."""
