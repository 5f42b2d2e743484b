"""Reads the binary logs of MySQL and MariaDB. Their kinds of events and their transaction ids differ."""
