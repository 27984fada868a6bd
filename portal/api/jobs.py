"""Jobs as the REST root offers them: submitting and repeating may safely be sent again."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.jobs import SUBMISSION
from jobs.api.jobs import JobViewSet as PlainJobViewSet
from portal.api.idempotency import KEY_PARAMETER, IdempotentCreate


class JobViewSet(IdempotentCreate, PlainJobViewSet):
    """Programs to be run once to their end."""

    idempotency_scope = "job"

    @extend_schema(**SUBMISSION, parameters=[KEY_PARAMETER])
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Put a job into the queue.

        What no host could ever hold is refused with 422; `fits` then says the most that could be
        asked for. Send the header `Idempotency-Key`, and a request whose answer got lost can be
        sent again without a second job.
        """
        return super().create(request, *args, **kwargs)
