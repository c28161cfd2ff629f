"""Scaling laws from the runs of a sweep: lines, where they meet, floors, and their pictures."""
