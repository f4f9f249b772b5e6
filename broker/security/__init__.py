"""Keys, who is authorised, and CURVE on a socket."""
