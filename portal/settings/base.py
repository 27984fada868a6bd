"""Settings that hold everywhere; the other modules of this package vary them."""

from typing import Any

from csp.constants import NONCE

from portal.settings import env

BASE_DIR = env.BASE_DIR
STATE_DIR = env.state_dir()
SECRET_KEY = env.secret_key(STATE_DIR)
DEBUG = False
ALLOWED_HOSTS = env.words("STARLING_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]")
CSRF_TRUSTED_ORIGINS = env.words("STARLING_TRUSTED_ORIGINS")

INSTALLED_APPS = [
    "portal.apps.PortalConfig",
    "monitoring.apps.MonitoringConfig",
    "jobs.apps.JobsConfig",
    "cluster.apps.ClusterConfig",
    "channels",
    "rest_framework",
    "knox",
    "django_filters",
    "drf_spectacular",
    "django_htmx",
    "allauth",
    "allauth.account",
    "auditlog",
    "csp",
    "portal.apps.PortalAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.audit.ActorMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]

ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.context.site",
            ],
        },
    },
]

DATABASES = {"default": env.database(env.text("DATABASE_URL"), STATE_DIR)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Broker, channel layer and cache are one Valkey/Redis: a given one, or the embedded one's socket.
REDIS_URL = env.text("REDIS_URL")
EMBEDDED_SOCKET = env.socket_path(STATE_DIR)
_SOCKET_URL = f"unix://{EMBEDDED_SOCKET}"
CELERY_BROKER_URL = REDIS_URL or f"redis+socket://{EMBEDDED_SOCKET}"
CHANNEL_LAYERS: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        # Above the default of 100, past which a burst is dropped; what is dropped all the same
        # is back-filled by the client over REST.
        "CONFIG": {"hosts": [REDIS_URL or _SOCKET_URL], "capacity": 2000, "prefix": "starling"},
    }
}
CACHES: dict[str, dict[str, Any]] = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL or _SOCKET_URL,
        "KEY_PREFIX": "starling",
    }
}

# Celery only nudges: short idempotent tasks, truth is in the database.
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_SOFT_TIME_LIMIT = 30
CELERY_TASK_TIME_LIMIT = 40
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, float] = {
    "visibility_timeout": 300,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
}
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE: dict[str, dict[str, Any]] = {
    "schedule-pending": {"task": "jobs.schedule_pending", "schedule": 3.0},
    "reconcile-hosts": {"task": "jobs.reconcile_hosts", "schedule": 3.0},
    "sweep-uploads": {"task": "jobs.sweep_uploads", "schedule": 60.0},
    "sweep-runs": {"task": "jobs.sweep_runs", "schedule": 30.0},
    "sweep-accounts": {"task": "portal.sweep", "schedule": 3600.0},
    "roll-up-samples": {"task": "monitoring.roll_up_samples", "schedule": 60.0},
}
CELERY_BEAT_SCHEDULE_FILENAME = str(STATE_DIR / "beat")

AUTH_USER_MODEL = "portal.User"
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "portal:dashboard"
LOGOUT_REDIRECT_URL = "account_login"
ACCOUNT_ADAPTER = "portal.accounts.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "email", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = env.text("STARLING_EMAIL_VERIFICATION", "optional")
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_USERNAME_MIN_LENGTH = 2
SIGNUP_OPEN = env.flag("STARLING_SIGNUP_OPEN", default=True)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"

EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"
DEFAULT_FROM_EMAIL = env.text("STARLING_FROM_EMAIL", "starling@localhost")

LANGUAGE_CODE = "en"
TIME_ZONE = env.text("STARLING_TIME_ZONE", "UTC")
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = STATE_DIR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True

# No inline script or style, nothing from another site; blob: and data: images are saved charts.
# The nonce is only sent with pages that ask for it: the code editor makes its styles while it runs.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "style-src": ["'self'", NONCE],
        "img-src": ["'self'", "data:", "blob:"],
        "connect-src": ["'self'"],
        "object-src": ["'none'"],
        "base-uri": ["'self'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    },
}
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"

REST_FRAMEWORK: dict[str, Any] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.api.authentication.ApiTokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "cluster.api.negotiation.AnyAccept",
    "DEFAULT_PARSER_CLASSES": [
        "rest_framework.parsers.JSONParser",
        "rest_framework.parsers.MultiPartParser",
    ],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "portal.api.pagination.KeysetPagination",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_VERSIONING_CLASS": "rest_framework.versioning.NamespaceVersioning",
    "DEFAULT_VERSION": "v1",
    "EXCEPTION_HANDLER": "portal.api.exceptions.handle",
    "DEFAULT_THROTTLE_CLASSES": [
        "portal.api.throttling.UserThrottle",
        "portal.api.throttling.AnonymousThrottle",
    ],
    "DEFAULT_THROTTLE_RATES": {
        "user": env.text("STARLING_USER_RATE", "1200/min"),
        "anon": env.text("STARLING_ANON_RATE", "120/min"),
    },
    "PAGE_SIZE": 50,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
SPECTACULAR_SETTINGS: dict[str, Any] = {
    "TITLE": "Starling",
    "DESCRIPTION": "Datasets, training jobs, hosts, GPUs and what they measure.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "JobStatusEnum": "jobs.models.job.STATUS_CHOICES",
        "ReplicaStatusEnum": "jobs.lifecycle.ReplicaStatus",
        "VersionStateEnum": "jobs.models.dataset.VersionState.choices",
        "UploadStateEnum": "jobs.models.dataset.UploadState.choices",
        "RunStateEnum": "jobs.models.simulation.RunState.choices",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "portal.api.schema.describe_errors",
    ],
}
REST_KNOX = {
    "AUTH_HEADER_PREFIX": "Token",
    "TOKEN_PREFIX": "stl_",
    "TOKEN_MODEL": "portal.ApiToken",
}
KNOX_TOKEN_MODEL = "portal.ApiToken"  # noqa: S105 - a model's name
# Its own table is never used, and would refer to our users where nobody empties it.
MIGRATION_MODULES = {"knox": None}

# What the product itself is told; each is described in docs/operations.md.
STARLING: dict[str, Any] = {
    # Names this installation on the containers it starts; a portal removes containers of its own
    # name that it does not know, so a second portal on one engine must differ.
    "INSTANCE": env.text("STARLING_INSTANCE", env.instance_name(SECRET_KEY)),
    # The process runtime runs a student's code as the portal's own user: for one's own machine.
    "PROCESS_RUNTIME": env.flag("STARLING_PROCESS_RUNTIME", default=False),
    # The image with Python in which the probe runs on container hosts.
    "PROBE_IMAGE": env.text("STARLING_PROBE_IMAGE", "starling/base:latest"),
    # GPUs that are not there, for a laptop: a machine that cluster.probe.simulated knows.
    "SIMULATED_GPUS": env.text("STARLING_SIMULATED_GPUS"),
    # How long a host may be silent before what ran there is given up as lost.
    "HOST_LOST_S": env.integer("STARLING_HOST_LOST_S", 300, minimum=10),
    "STORAGE_QUOTA_MIB": env.integer("STARLING_STORAGE_QUOTA_MIB", 20_480),
    "MAX_ACTIVE_JOBS": env.integer("STARLING_MAX_ACTIVE_JOBS", 50, minimum=1),
    "UPLOAD_MAX_MIB": env.integer("STARLING_UPLOAD_MAX_MIB", 10_240, minimum=1),
    "UNPACK_MAX_MIB": env.integer("STARLING_UNPACK_MAX_MIB", 51_200, minimum=1),
    "UNPACK_MAX_FILES": env.integer("STARLING_UNPACK_MAX_FILES", 1_000_000, minimum=1),
    "UPLOAD_EXPIRES_H": env.integer("STARLING_UPLOAD_EXPIRES_H", 24, minimum=1),
    "LOG_QUOTA_MIB": env.integer("STARLING_LOG_QUOTA_MIB", 64, minimum=1),
    "STOP_GRACE_S": env.integer("STARLING_STOP_GRACE_S", 30, minimum=1),
    # How long one simulation may be computed.
    "SIMULATION_MAX_S": env.integer("STARLING_SIMULATION_MAX_S", 600, minimum=1),
    # What a pass over the queue is good for, once everything that fits is placed.
    "PLACEMENT_OBJECTIVE": env.choice(
        "STARLING_PLACEMENT_OBJECTIVE", ("hosts", "balance", "fragmentation", "move")
    ),
    "MAX_WALLTIME_H": env.integer("STARLING_MAX_WALLTIME_H", 168, minimum=1),
}

# Uploads are streamed by our own tus views and never pass through Django's form parser.
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 2**20
FILE_UPLOAD_MAX_MEMORY_SIZE = 2 * 2**20

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "portal.logs.FactsFormatter"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.text("STARLING_LOG_LEVEL", "INFO")},
    "loggers": {"django.server": {"level": "WARNING"}, "httpx": {"level": "WARNING"}},
}
