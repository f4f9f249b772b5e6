"""`headrace bench`: figures with their parameters first, and one JSON line last."""
