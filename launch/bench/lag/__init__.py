"""Training at a forced lag, and the area under its learning curve."""
