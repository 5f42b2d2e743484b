"""`changelog run`: runs the service."""

import argparse
import gc
import os

from changelog.connectors import config, failpoints, gaps
from changelog.connectors.service.service import Service
from changelog.connectors.service.systemd import Manager

COLLECT_EVERY = 50_000
"""After how many new objects Python searches for reference cycles. A batch of rows makes tens of thousands of objects.
They form no cycles, and are freed when the batch is committed. With Python's default of 700, a sink would spend a tenth
of its time on such searches.
"""


FOUND = 1
"""The exit code of `--over-gap` without `--yes` if there is a gap."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog run`."""
    parser.add_argument(
        "--accept-config",
        action="store_true",
        help="continue although the changelog was begun with other keys, partitions, columns or masks",
    )
    parser.add_argument(
        "--over-gap",
        action="store_true",
        help="show what is known about changes that were lost; with --yes, continue after them: the service reads "
        "every table again, publishes a delete of each key that is gone, and records the gap in the changelog",
    )
    parser.add_argument(
        "--yes", action="store_true", help="with --over-gap, continue; without --yes, nothing is changed"
    )
    parser.add_argument(
        "--accept-cluster",
        action="store_true",
        help="continue on a new cluster after an upgrade of PostgreSQL; all changes of the old cluster must have been "
        "published",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Runs the service until a signal or an error stops it.

    With `--over-gap`, shows the gap. Then runs the service only if there is a gap and `--yes` is given.
    """
    gc.set_threshold(COLLECT_EVERY)
    reach = failpoints.parse(os.environ.get(failpoints.VARIABLE))
    settings = config.load(arguments.config, os.environ)
    if arguments.over_gap:
        gap = gaps.find(settings, accept_settings=arguments.accept_config, reach=reach)
        if gap is None:
            print("there is no gap: `changelog run` continues where the changelog ends")
            return 0
        for line in gaps.lines(settings, gap):
            print(line)
        if not arguments.yes:
            print("nothing is changed; to go on: changelog run --over-gap --yes")
            return FOUND
        gaps.cross(settings, gap, accept_settings=arguments.accept_config, reach=reach)
    Service(
        settings,
        accept_settings=arguments.accept_config,
        accept_cluster=arguments.accept_cluster,
        reach=reach,
        manager=Manager.of(os.environ),
    ).run()
    return 0
