"""Reads, generates and judges schema files. A schema file is the contract of one entity with its readers."""
