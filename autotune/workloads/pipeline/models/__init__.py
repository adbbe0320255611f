"""The built-in chains of layers."""
