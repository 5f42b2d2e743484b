"""Golden tests: plain SQL, and after each statement what the changelog says of it (README.md)."""
