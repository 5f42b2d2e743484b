"""Fault campaigns. Each module here has a function `campaign()`, whose result `_pieces.run` runs.

`make test` runs each campaign with few rounds. `make soak CAMPAIGN=NAME ROUNDS=N SEED=S` runs one with many rounds and
records its figures in docs/measured/. A run that was interrupted, or that found a fault, continues with the first piece
that is not done when it is started again. A campaign that finds a fault raises AssertionError, which names the round.
"""
