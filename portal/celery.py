"""The Celery application; tasks are short nudges, see the architecture page."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.dev")

app = Celery("starling")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
