"""The web pages, the REST root and the wiring of the whole project; the top layer."""

from portal.celery import app as celery_app

__all__ = ["celery_app"]
