"""The Python API for people: reads a changelog as envelopes and as Arrow tables (`changelog.open`)."""
