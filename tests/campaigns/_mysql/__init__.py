"""Parts of the campaigns with MySQL and MariaDB. Of the product, the judges use only the reader of the file log."""
