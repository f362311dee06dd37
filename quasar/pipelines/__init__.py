"""From names to a pipeline that is loaded and ready."""
