"""Data structures of the drafters that copy."""
