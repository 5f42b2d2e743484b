"""Stamps the transactions of Django, if `changelog_stamps.django` is in INSTALLED_APPS.

The setting `CHANGELOG_STAMPS` is a mapping, whose members are all optional. `service` and `version` are those of every
stamp. `identifier_header` names the header that has the identifier of a request. With `emit`, the stamp is written to
the database's log at once. Tables without the trigger that `changelog init --stamps` creates need this. The middleware
`changelog_stamps.django.middleware.stamp_requests` adds the identifier of the request to the stamp.

On PostgreSQL, the stamp is written just before the first statement of each `atomic` block. Outside of such a block,
each statement is a transaction of its own, so no stamp of the application can apply to it. On MySQL and MariaDB, each
statement gets a comment with the stamp.
"""
