"""The parts of the campaign `debezium_judge`."""
