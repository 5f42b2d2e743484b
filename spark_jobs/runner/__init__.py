"""The frame that every job runs in: arguments, session, errors, figures."""
