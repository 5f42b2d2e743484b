"""Holds the *campaigns*: long tests that make many faults while the service publishes, and then check its changelog.

Each module whose name does not begin with an underscore is a campaign. Its function `campaign()` returns the object
that `_pieces.run` runs.

`make test` runs each campaign with few rounds. `make soak CAMPAIGN=NAME ROUNDS=N SEED=S` runs one campaign with many
rounds, and adds the figures of this run to docs/measured/. The rounds are divided into pieces. If a run is interrupted
or fails, it can be continued: the next run with the same ROUNDS starts with the first unfinished piece. With a
different SEED, it is a run of its own; without SEED, it takes the seed of the last unfinished run. A campaign fails
with an AssertionError, whose message names the rounds of the failed piece.
"""
