"""The version of flashrnn-testing."""

__version__ = "2.0.0.dev0"
