"""The ASGI entry point: HTTP by Django, uploads as a stream, WebSockets by Channels."""

import os

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.dev")
_http = get_asgi_application()

from monitoring.routing import websocket_urlpatterns  # noqa: E402 - models are loaded only now
from portal.streaming import StreamingHandler, streamed_below  # noqa: E402 - the same

application = ProtocolTypeRouter(
    {
        "http": streamed_below("/api/v1/uploads/", StreamingHandler(), _http),
        "websocket": AllowedHostsOriginValidator(
            AuthMiddlewareStack(URLRouter(websocket_urlpatterns))
        ),
    }
)
