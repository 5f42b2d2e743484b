"""Fault campaigns. Each module here has a function `campaign()`, whose result `_pieces.run` runs.

`make test` runs each campaign with few rounds. `make soak CAMPAIGN=NAME ROUNDS=N SEED=S` runs one with many rounds and
records its figures in docs/measured/. A campaign runs in pieces of one or more rounds. If a run was interrupted, or
found a fault, the next run with the same number of rounds continues with the first piece that is not done. A campaign
that finds a fault raises AssertionError, whose message names the round.
"""
