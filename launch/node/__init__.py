"""`headrace node`: many samplers on one machine, forked, restarted and counted."""
