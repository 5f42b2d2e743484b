"""Serves an application over HTTP, and protects it: what `changelog console` and `changelog views serve` share.

Nothing here knows what the application shows.
"""
