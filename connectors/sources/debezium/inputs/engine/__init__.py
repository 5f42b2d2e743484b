"""The input in process: Debezium's engine reads the database, in a process beside the service."""
