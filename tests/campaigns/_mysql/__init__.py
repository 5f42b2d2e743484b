"""The parts of the campaigns `mysql` and `mariadb`. Of the product, they use only the reader of the file log."""
