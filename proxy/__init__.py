"""Tidegate: an OpenAI-compatible proxy that keeps long conversations inside the context window."""

__version__ = "0.1.0"
