"""`changelog run`: the service."""

import argparse
import gc
import os

from connectors import config, failpoints
from connectors.service import Service

COLLECT_EVERY = 50_000
"""New objects between two looks for cycles. A batch of rows makes tens of thousands, without any cycle, and lets go of
them all at its commit: at Python's own 700, a tenth of a sink's time goes into looking at them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog run` takes."""
    parser.add_argument(
        "--accept-config",
        action="store_true",
        help="go on although keys, partitions, columns or masks are no longer those the changelog was begun with",
    )
    parser.add_argument(
        "--accept-cluster",
        action="store_true",
        help="go on in another cluster, after an upgrade of PostgreSQL: all that the old one held must be published",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Runs until it is stopped by a signal, or by an error."""
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)
    reach = failpoints.parse(os.environ.get(failpoints.VARIABLE))
    Service(
        config.load(arguments.config, os.environ),
        accept_settings=arguments.accept_config,
        accept_cluster=arguments.accept_cluster,
        reach=reach,
    ).run()
    return 0
