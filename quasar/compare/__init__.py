"""The measuring instrument."""
