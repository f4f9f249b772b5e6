"""`headrace search`: settings that learn better, found by training with many."""
