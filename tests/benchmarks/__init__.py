"""Measurements, run by hand; no test depends on how fast a machine is."""
