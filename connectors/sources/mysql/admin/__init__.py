"""Reads the server's catalogue and the state of its log, checks what the service needs, and sends signals."""
