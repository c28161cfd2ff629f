"""Measurements of speed and memory, and the models that they are held against."""
