"""Acting for all samplers of a machine in one process: their rows in one call of the network."""
