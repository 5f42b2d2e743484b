"""Stamps the transactions of Django, if `changelog_stamps.django` is in INSTALLED_APPS.

The setting `CHANGELOG_STAMPS` is a mapping. All its members are optional:

- `service` and `version` become part of every stamp that does not name a service itself.
- `identifier_header` is the name of the header that has the identifier of a request. The middleware
  `changelog_stamps.django.middleware.stamp_requests` adds this identifier to the stamp.
- `emit` says that the stamp is written into the database's log at once. It is for tables that lack the trigger that
  `changelog init --stamps` creates: on other tables, this trigger writes the stamp.

On PostgreSQL, the stamp is set just before the first statement of each `atomic` block. Changes outside of such blocks
are not stamped: each statement is a transaction of its own, in which no earlier statement could set a stamp. On MySQL
and MariaDB, each statement gets a comment with the stamp.
"""
