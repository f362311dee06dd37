"""``quasar fidelity``: how close a verifier is to the model in full precision, before anyone quotes its speed."""
