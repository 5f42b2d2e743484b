"""The HTTP API of views: reads questions, waits until states are new enough, and makes answers."""
