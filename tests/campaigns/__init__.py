"""Fault campaigns: each module here has `run(rounds: int, seed: int) -> dict[str, object]`, which gives its figures.

`make test` runs each with few rounds; `make soak CAMPAIGN=NAME ROUNDS=N SEED=S` runs many and writes the figures down.
A campaign that finds a fault raises AssertionError with the round it happened in.
"""
