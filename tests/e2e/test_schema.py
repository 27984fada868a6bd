"""The REST interface does what its own OpenAPI document says, for whatever that allows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from django.utils import timezone
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CheckFunction, load_all_checks, not_a_server_error
from schemathesis.specs.openapi import checks as openapi

from jobs.services import dataset_create_from_path
from monitoring.models import LogStream
from portal import services
from tests.factories.portal import UserFactory
from tests.integration.api.rows import (
    NOW,
    finish,
    leave_file,
    make_code,
    make_environment,
    make_host,
    make_job,
    make_placement,
    make_simulation,
    make_template,
)

load_all_checks()
schemathesis.serializer.alias("application/offset+octet-stream", "application/octet-stream")
schema = schemathesis.openapi.from_wsgi("/api/v1/schema/?format=json", get_wsgi_application())

# The upload protocol answers 412 to a client that does not say which version it speaks.
schema.config.checks.negative_data_rejection.expected_statuses = [
    *schema.config.checks.negative_data_rejection.expected_statuses,
    "412",
]

#: Left out: whether data that fit the document are accepted. A document cannot say which
#: environments exist or what a host can hold, so a refusal with 400 or 422 is right there.
CHECKS: list[CheckFunction] = [
    not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
    openapi.negative_data_rejection,
    openapi.use_after_free,
    openapi.unsupported_method,
]


@pytest.fixture
def lab(db: None, tmp_path: Path) -> dict[str, Any]:
    """Return the ids of things that are there, so that half of the requests reach something."""
    admin, student = UserFactory(username="chief", admin=True), UserFactory(username="ada")
    host = make_host(gpus=1)
    make_template(environment=make_environment())
    code = make_code(admin)
    job = make_job(admin, code=code)
    replica = finish(job, host=host)
    leave_file(replica, "model.keras", b"weights")
    LogStream.objects.create(replica=replica, is_complete=True)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    version = dataset_create_from_path(owner=admin, name="irises", path=tmp_path, now=NOW)
    token, _ = services.token_create(user=admin, name="x", days=1, now=timezone.now())
    secrets = {
        user.username: services.token_create(user=user, name="t", days=1, now=timezone.now())[1]
        for user in (admin, student)
    }
    return {
        "secrets": secrets,
        "jobs": str(job.public_id),
        "datasets": str(version.dataset.public_id),
        "code": str(code.public_id),
        "tokens": str(token.public_id),
        "hosts": host.name,
        "gpus": "GPU-gpu-1-0",
        "environments": "tensorflow",
        "templates": "digits",
        "simulations": str(make_simulation(admin).public_id),
        "placements": str(make_placement(student).public_id),
    }


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# Werkzeug's client, which sends the requests, leaves its temporary files to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("who", ["chief", "ada"])
def test_every_answer_is_one_that_the_document_names(
    case: schemathesis.Case, lab: dict[str, Any], who: str
) -> None:
    kind = case.operation.path.removeprefix("/api/v1/").split("/")[0]
    known = lab.get(kind)
    parameters = case.path_parameters or {}
    aims = sum(map(len, map(str, parameters.values()))) % 2 == 0
    if known is not None and aims and case.meta and case.meta.generation.mode.is_positive:
        for name in ("id", "public_id", "name", "uuid", "slug"):
            if name in parameters:
                parameters[name] = known
        if "number" in parameters:
            parameters["number"] = 1

    case.call_and_validate(checks=CHECKS, headers={"Authorization": f"Token {lab['secrets'][who]}"})


def test_the_document_is_openapi_3_1_and_names_every_error(client: Any) -> None:
    answer = client.get("/api/v1/schema/", {"format": "json"})

    document = json.loads(answer.content)
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            assert {"400", "401", "404", "429"} <= set(operation["responses"]), (method, path)
            assert operation.get("summary"), (method, path)
            assert operation.get("description"), (method, path)
