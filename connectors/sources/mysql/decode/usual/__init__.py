"""Reads many small transactions of the usual form together.

The results must be the same as those of `transactions`, which reads one event after another.
"""
