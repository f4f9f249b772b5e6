"""What the train loop does with one batch: forward, backward, optimiser, statistics."""
