"""The catalogue of the server, and the checks of what the service needs from the server."""
