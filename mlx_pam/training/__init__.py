"""Training: the schedule, the step, the loop around it and what it shows and writes."""
