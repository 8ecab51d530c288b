"""The version of flashrnn-cuda."""

__version__ = "2.0.0.dev0"
