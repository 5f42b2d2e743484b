"""Makes typed Arrow columns from the changes of keys: the last state of each key, with values of the columns' types."""
