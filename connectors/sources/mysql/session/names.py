"""Quotes names for SQL."""


def quoted(*names: str) -> str:
    """Quotes names for SQL, and joins them with dots: for example, a database and a table in it."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def quoted_account(account: str) -> str:
    """Quotes an account for SQL. `account` has the form that `CURRENT_USER()` prints, such as `app@%`."""
    user, _, host = account.rpartition("@")
    return "'{}'@'{}'".format(user.replace("'", "''"), host.replace("'", "''"))
