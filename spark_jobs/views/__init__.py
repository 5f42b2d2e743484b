"""Views: the last state of each key, as folded from its changes, and where it is written."""
