"""Administers the topics of a changelog: names, settings, rights, creation and removal."""
