"""Quantised linear layers and their backends."""
