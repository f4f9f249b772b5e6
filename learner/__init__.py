"""The learner's room: models, weights, losses, batches, the train loop, checkpoints."""
