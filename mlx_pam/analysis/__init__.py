"""What runs and models show when they are looked at: arrays in, figures and pictures out."""
