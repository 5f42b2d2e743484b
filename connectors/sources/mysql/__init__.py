"""Reads the binary logs of MySQL and MariaDB. The two databases have different kinds of events and transaction ids."""
