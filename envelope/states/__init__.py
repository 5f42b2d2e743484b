"""Computes the last state of each key from the key's changes, and makes typed Arrow columns of these states."""
