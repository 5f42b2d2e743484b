"""The source's side of a comparison: the fence that both sides are cut by, and the tasks that read tables under it."""
