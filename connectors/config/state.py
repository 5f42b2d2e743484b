"""Defines the section `[state]`. With it, the service keeps a local store of the current row of every key."""

from pathlib import Path

from changelog.connectors.config.fields import Section


class StateConfig(Section):
    """`[state]`: the folder in which the service keeps the current row of every key.

    From these rows, messages get the values that the database's log lacks, such as the row before an update
    (`original`).
    """

    path: Path
