"""Makes deltas from messages, and folds deltas into states. A delta is a JSON Patch from one state of a key to the
next.
"""

from changelog.envelope.delta.deltas import Delta, back, delta_of, fold, foldable

__all__ = ["Delta", "back", "delta_of", "fold", "foldable"]
