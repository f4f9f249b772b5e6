"""Composition: the command line, the run files, one small main per role."""
