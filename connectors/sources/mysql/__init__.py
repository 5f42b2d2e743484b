"""MySQL and MariaDB: reads their binary log. Each has events and transaction ids of its own in it."""
