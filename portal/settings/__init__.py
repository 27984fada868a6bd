"""Settings, one module per environment."""
