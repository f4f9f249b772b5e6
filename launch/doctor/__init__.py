"""What `headrace doctor` looks at: one small function for each question."""
