"""Quotes names for SQL."""


def quoted(*names: str) -> str:
    """Returns a name for SQL, such as the names of a database and a table in it."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def quoted_account(account: str) -> str:
    """Returns an account for SQL; `account` is as `CURRENT_USER()` prints it, such as `app@%`."""
    user, _, host = account.rpartition("@")
    return "'{}'@'{}'".format(user.replace("'", "''"), host.replace("'", "''"))
