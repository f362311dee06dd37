"""The built-in models, and how their files become folders that transformers loads."""
