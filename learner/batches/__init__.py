"""Unrolls on their way into the learner: received, batched, uploaded, recorded."""
