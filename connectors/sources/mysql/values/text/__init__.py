"""Converts text from the character sets of MySQL and MariaDB to UTF-8."""
