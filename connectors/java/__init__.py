"""Finds the program `java`, and fetches jars."""
