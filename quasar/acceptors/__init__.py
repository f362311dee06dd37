"""Acceptors, one file each."""
