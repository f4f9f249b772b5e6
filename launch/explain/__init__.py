"""`headrace explain`: what holds a run back, from what it wrote."""
