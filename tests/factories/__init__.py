"""A factory builds a valid row and nothing else; traits for states."""
