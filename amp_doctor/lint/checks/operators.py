"""Checks of this family."""
