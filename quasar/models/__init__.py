"""Running a model: sessions, stages, what verifiers and drafters over a model share, and what is kept on disk."""
