"""Converts the rows of events: values become texts, and the texts become rows of the changelog."""
