"""Assembles what a decoder reads from a log into rows of the changelog, and places table reads among them."""
