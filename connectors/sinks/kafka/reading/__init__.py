"""Reads a changelog and its checkpoint from the broker, and checks that its topics are still the same ones."""
