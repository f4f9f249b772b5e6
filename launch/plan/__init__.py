"""`headrace plan`: the cheapest machines for a run, from what its parts cost."""
