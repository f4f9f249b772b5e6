"""A network that is spread over the learner's ranks."""
