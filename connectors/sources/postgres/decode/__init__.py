"""Decodes the bytes of pgoutput into rows of the changelog. Pure."""
