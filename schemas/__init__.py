"""Contracts: neutral column types, and the schemas of what is published. Imports nothing of ours."""
