"""Names, for each attribute of each row, the change that set it, and counts how many changes have a stamp."""
