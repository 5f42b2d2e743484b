"""Deltas: JSON Patches between the states of a key, made of messages and folded back into states."""

from changelog.envelope.delta.deltas import Delta, back, delta_of, fold, foldable

__all__ = ["Delta", "back", "delta_of", "fold", "foldable"]
