"""What PostgreSQL keeps beside the rows of a view, and derives from them: totals, sessions, and documents."""
