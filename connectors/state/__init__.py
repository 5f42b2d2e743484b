"""Keeps the current row of every key in a local store, so that messages get the values that the database's log lacks.

A log may lack the old row of an update or a delete (`original`), and large values that did not change. The store has
each row as the changelog last published it, and the publish loop takes the missing values from the store. The store is
a cache: if it is deleted, it is made again from the changelog.
"""
