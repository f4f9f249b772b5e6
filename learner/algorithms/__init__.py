"""V-trace, losses, how often a batch is used, schedules, the optimiser's step."""
