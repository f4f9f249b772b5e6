"""The messages on the wire, their bounded fields and their encoding."""
