"""Finds, for each attribute of each row, the change that set it, and counts the changes that say who made them."""
