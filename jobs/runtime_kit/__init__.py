"""What is mounted read-only beside every program; imports nothing of the project."""
