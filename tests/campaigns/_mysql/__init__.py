"""Has the parts of the campaigns with MySQL and MariaDB.

The modules that judge a changelog use no code of the product except the reader of the file log.
"""
