"""Views: the last state of each key, folded from its changes, and the outputs that a view is written to."""
