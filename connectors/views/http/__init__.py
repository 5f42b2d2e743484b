"""Serves the current state of rows over HTTP: reads requests, waits until the states are new enough, and answers."""
