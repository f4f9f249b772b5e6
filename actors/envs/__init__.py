"""Makes and wraps environments, and turns their spaces and observations into plain arrays."""
