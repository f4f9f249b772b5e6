"""Models, weights, losses, batches, the train loop, checkpoints."""
