"""How long tests wait for what has to come."""

PATIENCE_S = 300.0
"""A bound for what never comes, and no measure: it comes within seconds, or, where many others work, much later."""
