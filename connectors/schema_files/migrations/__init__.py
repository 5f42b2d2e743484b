"""Judges and reports what the statements of a migration would do to the changelog, entity by entity."""
