"""The version of flashrnn-core."""

__version__ = "2.0.0.dev0"
