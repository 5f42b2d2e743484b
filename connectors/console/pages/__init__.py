"""Makes the pages of the console. Each module has one page; a page is a function from a request to a `Page`."""
