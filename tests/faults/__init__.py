"""Faults: real processes, a real PostgreSQL, and what goes wrong between them."""
