"""Holds the parts of the campaign `debezium_judge`. The campaigns `debezium_kills` and `debezium_connect` use the same
parts.
"""
