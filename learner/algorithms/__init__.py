"""V-trace, GAE, losses, the uses of a batch, schedules, the optimiser's step."""
