"""Who comes next: the order of the queue, and who may overtake whom."""
