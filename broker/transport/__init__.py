"""Sockets: addresses, asynchronous receiving, connections with heartbeats, the key gate."""
