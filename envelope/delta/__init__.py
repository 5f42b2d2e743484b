"""Makes deltas from messages, and *folds* deltas: applies them one after another to get states. A delta is a JSON Patch
that turns one state of a row into the next.
"""

from changelog.envelope.delta.deltas import Delta, back, delta_of, fold, foldable

__all__ = ["Delta", "back", "delta_of", "fold", "foldable"]
