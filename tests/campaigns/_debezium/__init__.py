"""Holds the parts of the campaign `debezium_judge`, which `debezium_kills` and `debezium_connect` also run."""
