"""PostgreSQL's types, and how the text of each value becomes JSON."""
