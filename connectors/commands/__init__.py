"""The commands of `changelog`, one module each, all of the shape `connectors.cli.Command`."""
