"""Passes in pipeline order: coordinate space to position space to flat buffers."""
