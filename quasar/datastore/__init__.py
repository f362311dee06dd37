"""``quasar datastore``: make what the drafter ``retrieval`` copies from."""
