"""`changelog schemas plan`: what a migration would do, tried on a real database and rolled back."""
