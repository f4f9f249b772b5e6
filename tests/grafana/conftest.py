"""Real processes are started as the system tests start them."""

from tests.system.conftest import place

__all__ = ["place"]
