"""Learning gates: what must learn, and how well."""
