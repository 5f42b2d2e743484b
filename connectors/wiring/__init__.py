"""From the configuration to what it names: the only place that knows which kind is which folder."""
