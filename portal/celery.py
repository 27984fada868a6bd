"""The Celery application; tasks are short nudges, see the architecture page."""

import os
from typing import Any

from celery import Celery
from celery.signals import worker_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.dev")

app = Celery("starling")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_init.connect
def load_before_forking(**_: Any) -> None:
    """Load what is slow to load once, for all of this worker's processes."""
    from cluster.core.placement.warm import warm_up

    warm_up(programs=False)
