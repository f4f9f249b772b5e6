"""Takes one batch through forward, backward, optimiser and statistics."""
