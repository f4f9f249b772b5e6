"""Networks from observations to features: numbers, pictures, and the user's own."""
