"""How long tests wait for what has to come."""

PATIENCE_S = 120.0
"""A bound for what never comes, and no measure: it comes within seconds, or, where many others work, much later.

What waits for it fails after this, and keeps a worker waiting as long.
"""

PROGRAM_S = 300.0
"""The same for a program that runs from its beginning to its end: a demo with its servers, a job with its Spark."""
