"""Networks from observations to features: numbers, images, and users' own."""
