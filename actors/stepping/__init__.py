"""Steps environments: one interface, several ways."""
