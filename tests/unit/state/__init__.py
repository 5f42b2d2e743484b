"""Tests of the store of current rows."""
