"""Schema files: each is the contract of one entity with its readers. These modules read, generate and judge them."""
