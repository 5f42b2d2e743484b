"""The catalogue, the slot, the publication and the rights: what is asked of the server, and what is set up."""
