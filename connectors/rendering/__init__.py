"""Renders answers about the changelog for people, on a terminal of any width. The output is not for programs."""
