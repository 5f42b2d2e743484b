"""The running service: publish loop, health, metrics."""
