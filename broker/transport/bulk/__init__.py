"""Carries large messages in pieces, with a window that follows the line's delay."""
