"""One main for each role: broker, sampler, learner, evaluator, relay."""
