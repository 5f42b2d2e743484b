"""What the statements of a migration would do to the changelog: each entity before and after, judged and reported."""
