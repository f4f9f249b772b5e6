"""Runs compared with each other: by their settings, with their seeds as repetitions."""
