"""Fault campaigns: each module here has `campaign()`, which gives what `_pieces.run` drives.

`make test` runs each with few rounds; `make soak CAMPAIGN=NAME ROUNDS=N SEED=S` runs many and writes the figures down.
What was interrupted, or found a fault, goes on with the round it was at when it is started again.
A campaign that finds a fault raises AssertionError with the round it happened in.
"""
