"""Contracts and the loop; imports no component."""
