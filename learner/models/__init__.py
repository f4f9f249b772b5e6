"""Networks and action distributions; the samplers import these too."""
