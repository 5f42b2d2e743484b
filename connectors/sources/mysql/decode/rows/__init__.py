"""The rows of events: their values become texts, and the texts rows of the changelog."""
