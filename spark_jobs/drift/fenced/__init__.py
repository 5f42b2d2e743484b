"""The source's side of a comparison: the fence (a snapshot as of which both sides are compared), and its tasks."""
