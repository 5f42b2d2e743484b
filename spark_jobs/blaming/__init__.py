"""Finds the change that set each attribute of each row, and counts changes by who made them."""
