"""The topics themselves: names, settings, rights, creation and removal."""
