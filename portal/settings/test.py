"""Tests: no broker and no network unless a test starts its own."""

import tempfile
from pathlib import Path

from portal.settings import env
from portal.settings.base import *  # noqa: F403
from portal.settings.base import CELERY_BROKER_TRANSPORT_OPTIONS, REST_FRAMEWORK, STARLING

DEBUG = False
SECRET_KEY = "only-for-tests"  # noqa: S105 - signs nothing that outlives a test
STATE_DIR = Path(env.text("STARLING_TEST_STATE") or tempfile.mkdtemp(prefix="starling-test-"))
STATIC_ROOT = STATE_DIR / "static"
STATIC_ROOT.mkdir(parents=True, exist_ok=True)
DATABASES = {"default": env.database(env.text("DATABASE_URL"), STATE_DIR)}
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
CELERY_BROKER_URL = "memory://"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    **CELERY_BROKER_TRANSPORT_OPTIONS,
    "polling_interval": 0.01,
}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
STARLING = {**STARLING, "PROCESS_RUNTIME": True, "INSTANCE": "test"}
REST_FRAMEWORK = {**REST_FRAMEWORK, "DEFAULT_THROTTLE_CLASSES": []}
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]
