"""The checks of `headrace doctor`: a small function for each question."""
