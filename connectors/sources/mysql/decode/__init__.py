"""Decodes the binary log. Pure: bytes become events, events become rows of the changelog."""
