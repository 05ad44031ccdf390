"""Journeys through the whole application, over sockets; they mirror no module."""
