"""The version of flashrnn-triton."""

__version__ = "2.0.0.dev0"
