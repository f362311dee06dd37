"""Contracts, mathematics and the loop; imports nothing else of quasar."""
