"""The broker's room: protocol, ledger, weights, server and clients. No torch here."""
