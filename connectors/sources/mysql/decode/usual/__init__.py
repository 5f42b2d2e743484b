"""Reads many small transactions together, if they have the usual form (see `shapes`).

The results must be the same as those of `transactions`, which reads one event after another.
"""
