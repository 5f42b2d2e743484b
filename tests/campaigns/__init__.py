"""Holds the *campaigns*: long tests that make many faults while the service publishes, and then check its changelog.

Each module without a leading underscore has a function `campaign()`. `_pieces.run` runs the campaign that this function
returns.

`make test` runs each campaign with few rounds. `make soak CAMPAIGN=NAME ROUNDS=N SEED=S` runs one with many rounds and
records its figures in docs/measured/. A campaign runs in pieces of one or more rounds. A run may be interrupted, or
find a fault. The next run with the same number of rounds then continues with the first unfinished piece. If a campaign
finds a fault, it raises AssertionError with a message that names the round.
"""
