"""``quasar profile``: what a forward costs, what it cannot cost less than, and where its time goes."""
