"""Makes the packages of the changelog publisher importable under one name.

In a checkout, the packages below are links to the folders of the same names at the top of the repository.
"""
