"""Answers questions about single rows and single writers from the changelog: what happened to a row, who set each of
its attributes, and what a service or a request wrote.

The functions read the changelog through the interface `changelog.connectors.sinks.Log`, wherever it is stored.
"""
