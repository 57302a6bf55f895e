"""Finds bits that change in memory while training runs: holdfast.Watch."""
