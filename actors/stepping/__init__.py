"""How environments are stepped: one awaitable interface, several ways."""
