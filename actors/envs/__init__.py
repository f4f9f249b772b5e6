"""Environments: made, wrapped and turned into plain arrays here; nobody else imports gymnasium."""
