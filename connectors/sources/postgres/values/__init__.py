"""PostgreSQL's types, and its text of each as JSON."""
