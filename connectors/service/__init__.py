"""The running service: the publish loop, health, metrics."""
