"""Groups of environments, and how each kind of them is stepped and mended."""
