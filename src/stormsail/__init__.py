"""Stormsail keeps a large training run alive: it sees trouble early, repairs it, and proves the repair."""

__version__ = "0.1.0"
