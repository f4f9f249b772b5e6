"""The evaluator: it plays the newest weights, tells the score and keeps the best."""
