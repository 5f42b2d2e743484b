"""Stamps the changes of a transaction with who makes them: a service, its version, and the request or job.

A stamp applies to all changes that are made inside a block `with stamp(…):`, once an adapter is in use. There is an
adapter for each driver and framework: the modules `changelog_stamps.psycopg`, `psycopg2`, `asyncpg`, `sqlalchemy`,
`django`, and `web` for WSGI and ASGI. The package never makes a transaction of the application fail. It leaves out a
value that cannot be part of a stamp, and logs one line about this.
"""

from changelog_stamps.current import current, stamp
from changelog_stamps.members import Stamp

__all__ = ["Stamp", "current", "stamp"]
