"""Stamps the changes of a transaction. A stamp says who makes the changes: a service, its version, and the request or
job.

A stamp applies to all changes that a block `with stamp(…):` makes through an adapter. There is an adapter for each
driver and framework: the modules `changelog_stamps.psycopg`, `psycopg2`, `asyncpg`, `sqlalchemy`, `django`, and `web`
for WSGI and ASGI. A value that cannot be part of a stamp never makes a transaction of the application fail: the package
leaves it out, and logs one line about this.
"""

from changelog_stamps.current import current, stamp
from changelog_stamps.members import Stamp

__all__ = ["Stamp", "current", "stamp"]
