"""How envelopes are written as bytes."""
