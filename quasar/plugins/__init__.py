"""What is installed: hooks, where plugins come from, what is checked of them, and the registry."""
