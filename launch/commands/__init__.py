"""The commands of `headrace`, in groups: each with its arguments beside what it calls."""
