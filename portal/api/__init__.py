"""The REST root: errors, pagination, idempotency and the schema."""
