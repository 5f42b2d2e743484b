"""Makes deltas from messages, and applies deltas one after another to get states (*folds* them). A delta is a JSON
Patch that turns one state of a row into the next.
"""

from changelog.envelope.delta.deltas import Delta, back, delta_of, fold, foldable

__all__ = ["Delta", "back", "delta_of", "fold", "foldable"]
