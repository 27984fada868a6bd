"""Writes the latest readings of many rows at once: one statement with one parameter."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db import connection, models

#: Row by row, or with a parameter per value, the same costs several times as much.
_STATEMENTS: Final = {
    "postgresql": (
        "UPDATE {table} SET {column} = %s, last_reading = new.reading "
        "FROM jsonb_to_recordset(%s::jsonb) AS new(key text, reading jsonb) "
        "WHERE {table}.{key} = new.key"
    ),
    "sqlite": (
        "UPDATE {table} SET {column} = %s, last_reading = new.reading FROM (SELECT "
        "json_extract(value, '$.key') AS key, json_extract(value, '$.reading') AS reading "
        "FROM json_each(%s)) AS new WHERE {table}.{key} = new.key"
    ),
}


def write_readings(
    model: type[models.Model],
    readings: Mapping[str, Mapping[str, Any]],
    *,
    key: str,
    column: str,
    now: datetime,
) -> None:
    """Set ``last_reading`` of rows by what they have in ``key``, and the moment in ``column``."""
    if not readings:
        return
    rows = [{"key": name, "reading": reading} for name, reading in sorted(readings.items())]
    quote = connection.ops.quote_name
    statement = _STATEMENTS[connection.vendor].format(
        table=quote(model._meta.db_table),  # noqa: SLF001 - Django's own name for it
        key=quote(key),
        column=quote(column),
    )
    at = connection.ops.adapt_datetimefield_value(now)
    with connection.cursor() as cursor:
        cursor.execute(statement, [at, json.dumps(rows)])
