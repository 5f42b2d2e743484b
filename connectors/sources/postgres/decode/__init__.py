"""From the bytes of pgoutput to pieces of the changelog. Pure."""
