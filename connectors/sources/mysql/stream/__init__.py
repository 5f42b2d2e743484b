"""The stream of the binary log, which a thread of its own receives."""
