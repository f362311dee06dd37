"""The version, in a file of its own: what needs it should not import the whole package."""

__version__ = "0.1.0"
