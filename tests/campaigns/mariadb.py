"""Runs the campaign `mysql` with MariaDB."""

from tests.campaigns import mysql
from tests.campaigns._pieces import Campaign


def campaign(seconds: float = 2.5) -> Campaign:
    """See `mysql.campaign`."""
    return mysql.campaign(seconds, "mariadb")
