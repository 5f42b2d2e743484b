"""`changelog views pom`: prints a pom.xml, with which Maven fetches the jars of `changelog views install` elsewhere."""

import argparse

from changelog.connectors.java import jars
from changelog.connectors.views.streams.jars import JARS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: `changelog views pom` has no arguments of its own."""


def execute(_: argparse.Namespace) -> int:
    """Prints the pom.xml."""
    print(jars.pom(JARS), end="")
    return 0
