"""Reading tables beside the stream: ranges of keys, and the rows of requested keys."""
