"""Makes a POST safe to send again: one key, one act, one answer."""

from typing import Any, Final, cast

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from portal import services
from portal.models import User

HEADER: Final = "Idempotency-Key"
KEY_PARAMETER: Final = OpenApiParameter(
    HEADER,
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description=(
        "Your own name for this request, for instance a UUID. Sending the request again with the "
        "same key within 24 hours returns the first answer and does nothing twice; another "
        "request with the same key is refused with 422."
    ),
    required=False,
)


class IdempotentCreate:
    """Mixed in before a viewset: its ``create`` obeys the header ``Idempotency-Key``.

    The viewset's creating comes in two parts: ``prepare(request)`` outside of any transaction,
    and ``make(request, prepared)``, which is done once for each key.
    """

    idempotency_scope: str

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:  # noqa: ARG002 - DRF's signature
        """Create once for each key; a repetition is answered as the first was."""
        key = request.headers.get(HEADER)
        viewset: Any = self
        prepared = viewset.prepare(request)
        if key is None:
            answer: Response = viewset.make(request, prepared)
            return answer
        result = services.idempotent(
            user=cast("User", request.user),
            scope=self.idempotency_scope,
            key=key,
            request_fingerprint=services.fingerprint(request.data),
            now=timezone.now(),
            act=lambda: viewset.make(request, prepared).data,
        )
        return Response(
            result.body,
            status=status.HTTP_201_CREATED,
            headers={"Idempotency-Replayed": "true"} if result.replayed else {},
        )
