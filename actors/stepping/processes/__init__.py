"""Steps environments in worker processes, through shared memory."""
