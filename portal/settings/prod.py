"""Behind a reverse proxy with TLS; PostgreSQL and Valkey/Redis are required."""

from django.core.exceptions import ImproperlyConfigured

from portal.settings import env
from portal.settings.base import *  # noqa: F403
from portal.settings.base import BASE_DIR, DATABASES, REDIS_URL

if "postgresql" not in DATABASES["default"]["ENGINE"]:
    raise ImproperlyConfigured("set DATABASE_URL=postgresql://user:password@host/name")
if not REDIS_URL:
    raise ImproperlyConfigured("set REDIS_URL=redis://host:6379/0")
if not env.text("STARLING_SECRET_KEY"):
    raise ImproperlyConfigured("set STARLING_SECRET_KEY to a long random text and keep it")

SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_SSL_REDIRECT = True
SECURE_HSTS_SECONDS = 31_536_000
SECURE_HSTS_INCLUDE_SUBDOMAINS = True
SECURE_HSTS_PRELOAD = True
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
# Made by "manage.py collectstatic" when the portal is installed.
STATIC_ROOT = BASE_DIR / "collected"
WHITENOISE_USE_FINDERS = False
EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
EMAIL_HOST = env.text("STARLING_SMTP_HOST", "localhost")
EMAIL_PORT = env.integer("STARLING_SMTP_PORT", 25)
EMAIL_HOST_USER = env.text("STARLING_SMTP_USER")
EMAIL_HOST_PASSWORD = env.text("STARLING_SMTP_PASSWORD")
EMAIL_USE_TLS = env.flag("STARLING_SMTP_TLS", default=False)
