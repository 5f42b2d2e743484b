"""`changelog run`: the service."""

import argparse
import os

from connectors import config, failpoints
from connectors.service import Service


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
    reach = failpoints.parse(os.environ.get(failpoints.VARIABLE))
    Service(
        config.load(arguments.config, os.environ),
        accept_settings=arguments.accept_config,
        accept_cluster=arguments.accept_cluster,
        reach=reach,
    ).run()
    return 0
