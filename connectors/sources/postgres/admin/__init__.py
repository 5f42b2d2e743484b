"""Reads the catalogue, and sets up and checks the slot, the publication and the rights."""
