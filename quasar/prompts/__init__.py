"""Prompts of a measurement: bundled ones, files, and their layout as conversations."""
