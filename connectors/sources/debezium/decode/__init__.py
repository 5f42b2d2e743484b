"""Translates Debezium's change events to rows and transactions of the capture core. Everything here is pure."""
