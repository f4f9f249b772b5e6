"""The broker's clients: sampler, learner, evaluator and relay, with what they keep."""
