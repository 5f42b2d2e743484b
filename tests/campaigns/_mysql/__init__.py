"""Holds the parts of the campaigns with MySQL and MariaDB.

Its modules that judge a changelog use the product's code only to read the files of the changelog.
"""
