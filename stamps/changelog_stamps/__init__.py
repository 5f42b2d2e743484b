"""Stamps the changes of a transaction with who makes them: a service, its version, and the request or job.

A stamp applies to all changes that are made while a block of `stamp` runs, once an adapter is in use. There is an
adapter for each driver and framework, in the module of its name: `changelog_stamps.psycopg`, `psycopg2`, `asyncpg`,
`sqlalchemy`, `django`, and `web` for WSGI and ASGI. Nothing here makes a transaction of the application fail: a value
that cannot be part of a stamp is left out, with one line in the log of this package.
"""

from changelog_stamps.current import current, stamp
from changelog_stamps.members import Stamp

__all__ = ["Stamp", "current", "stamp"]
