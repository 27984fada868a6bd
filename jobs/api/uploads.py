"""Resumable uploads by the protocol tus 1.0: core, creation, termination, checksum, expiration."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, UnreadablePostError
from django.http.response import HttpResponseBase
from django.urls import path, reverse
from django.utils import timezone
from django.utils.http import http_date
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import APIException, UnsupportedMediaType
from rest_framework.parsers import BaseParser
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import errors, selectors, services, storage
from jobs.models import Upload
from jobs.models.dataset import UploadState

_VERSION: Final = "1.0.0"
_EXTENSIONS: Final = "creation,creation-with-upload,termination,checksum,expiration"
_ALGORITHMS: Final = ("sha1", "sha256")
_PART: Final = "application/offset+octet-stream"
_PIECE: Final = 1 << 16
#: Header of the answer to the last part: where the dataset is that it has become.
_DATASET_HEADER: Final = "Starling-Dataset"


class UnsupportedProtocolError(APIException):
    status_code = status.HTTP_412_PRECONDITION_FAILED
    default_detail = f"send the header Tus-Resumable: {_VERSION}; it is the version spoken here"
    default_code = "unsupported_protocol"


class PartParser(BaseParser):
    """Stands for the protocol's media type; the bytes are read as they come, never parsed."""

    media_type = _PART

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:  # noqa: ARG002 - the base's
        """Return nothing: no view asks for it."""
        return {}


class UploadOutput(serializers.ModelSerializer):
    """An upload as clients see it that do not speak tus."""

    id = serializers.UUIDField(source="public_id")
    dataset = serializers.CharField(source="dataset_name")
    dataset_id = serializers.UUIDField(source="version.dataset.public_id", default=None)
    version = serializers.IntegerField(source="version.number", default=None)

    class Meta:
        model = Upload
        fields = (
            "id",
            "dataset",
            "filename",
            "length_bytes",
            "offset_bytes",
            "state",
            "expires_at",
            "dataset_id",
            "version",
        )


class TusView(APIView):
    """What the views of the protocol share: its version, its headers, its numbers."""

    parser_classes = (PartParser,)
    error_statuses: Mapping[type[Exception], int] = {
        errors.QuotaExceededError: status.HTTP_413_REQUEST_ENTITY_TOO_LARGE,
        errors.ChecksumMismatchError: 460,
    }

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Let clients that can only POST say what they mean, as the protocol asks."""
        meant = request.headers.get("X-HTTP-Method-Override", "").upper()
        # Between methods that change things only: what guards a POST guards these.
        if request.method == "POST" and meant in {"PATCH", "DELETE"}:
            request.method = meant
        return super().dispatch(request, *args, **kwargs)

    def get_permissions(self) -> Any:
        """Let everybody ask what is spoken here."""
        return [AllowAny()] if self.request.method == "OPTIONS" else super().get_permissions()

    def get_throttles(self) -> list[Any]:
        """Count what is begun, not the parts: a fast line would be its own undoing."""
        return super().get_throttles() if self.request.method == "POST" else []

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse other versions of the protocol once it is known who asks."""
        super().initial(request, *args, **kwargs)
        spoken = request.headers.get("Tus-Resumable")
        is_served = hasattr(self, str(request.method).lower())
        if is_served and request.method not in {"OPTIONS", "GET"} and spoken != _VERSION:
            raise UnsupportedProtocolError

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        """Name the version in every answer."""
        response = super().finalize_response(request, response, *args, **kwargs)
        response["Tus-Resumable"] = _VERSION
        if response.status_code == status.HTTP_412_PRECONDITION_FAILED:
            response["Tus-Version"] = _VERSION
        response["Cache-Control"] = "no-store"
        return response

    @extend_schema(summary="Ask what is spoken here", tags=["uploads"], responses={204: None})
    def options(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Response:  # noqa: ARG002 - Django's
        """Tell the versions, extensions and limits of the protocol."""
        return Response(
            status=status.HTTP_204_NO_CONTENT,
            headers={
                "Tus-Version": _VERSION,
                "Tus-Extension": _EXTENSIONS,
                "Tus-Max-Size": str(settings.STARLING["UPLOAD_MAX_MIB"] << 20),
                "Tus-Checksum-Algorithm": ",".join(_ALGORITHMS),
            },
        )


def _header(name: str, description: str, *, required: bool = True) -> OpenApiParameter:
    return OpenApiParameter(
        name, OpenApiTypes.STR, OpenApiParameter.HEADER, required=required, description=description
    )


_TUS: Final = _header("Tus-Resumable", f"The protocol's version, {_VERSION}.")
_OFFSET: Final = _header("Upload-Offset", "Where this part begins, in bytes.")
_CHECKSUM: Final = _header(
    "Upload-Checksum", "`sha1` or `sha256`, a space, the part's sum in base64.", required=False
)
_PART_REQUEST: Final = {_PART: OpenApiTypes.BINARY}


class UploadListView(TusView):
    """Where uploads begin."""

    @extend_schema(
        operation_id="uploads_create",
        summary="Begin an upload",
        tags=["uploads"],
        parameters=[
            _TUS,
            _header("Upload-Length", "The whole file's size in bytes."),
            _header(
                "Upload-Metadata",
                "Pairs of a key and a value in base64, separated by commas: `filename`,"
                " `dataset` (its name; without it the file's), `sha256` (of the whole file,"
                " hexadecimal; checked before it is unpacked).",
            ),
        ],
        request=_PART_REQUEST,
        responses={201: OpenApiResponse(description="`Location` says where the parts go.")},
    )
    def post(self, request: Request) -> Response:
        """Make room for a file, and take its first part where the request has one."""
        metadata = _metadata(request.headers.get("Upload-Metadata", ""))
        upload = services.upload_create(
            owner=request.user,
            dataset_name=metadata.get("dataset", ""),
            filename=metadata.get("filename") or metadata.get("name", ""),
            length_bytes=_length(request),
            sha256=metadata.get("sha256", ""),
            now=timezone.now(),
        )
        if _media_type(request) == _PART:
            upload = _append(request, upload.public_id, 0)
        where = reverse("v1:upload-detail", kwargs={"public_id": upload.public_id})
        answer = Response(status=status.HTTP_201_CREATED, headers=_progress(upload))
        answer["Location"] = request.build_absolute_uri(where)
        return answer


class UploadDetailView(TusView):
    """One upload under way."""

    @extend_schema(
        operation_id="uploads_head",
        summary="Ask where to go on",
        tags=["uploads"],
        parameters=[_TUS],
        responses={200: OpenApiResponse(description="`Upload-Offset` and `Upload-Length`.")},
    )
    def head(self, request: Request, public_id: UUID) -> Response:
        """Tell how far the upload has come."""
        upload = selectors.upload_get(request.user, public_id)
        if upload.state == UploadState.ABANDONED or _expired(upload):
            raise errors.UploadGoneError("the upload was given up; begin a new one")
        headers = {**_progress(upload), "Upload-Length": str(upload.length_bytes)}
        return Response(status=status.HTTP_200_OK, headers=headers)

    @extend_schema(
        operation_id="uploads_retrieve",
        summary="Look at an upload",
        tags=["uploads"],
        responses=UploadOutput,
    )
    def get(self, request: Request, public_id: UUID) -> Response:
        """Return the upload, with the dataset version that it has become."""
        return Response(UploadOutput(selectors.upload_get(request.user, public_id)).data)

    @extend_schema(
        operation_id="uploads_append",
        summary="Send a part",
        tags=["uploads"],
        parameters=[_TUS, _OFFSET, _CHECKSUM],
        request=_PART_REQUEST,
        responses={204: OpenApiResponse(description="`Upload-Offset` says where it ends.")},
    )
    def patch(self, request: Request, public_id: UUID) -> Response:
        """Take a part; the last one makes a dataset version of the file."""
        selectors.upload_get(request.user, public_id)
        if _media_type(request) != _PART:
            raise UnsupportedMediaType(_media_type(request), f"send the part as {_PART}")
        upload = _append(request, public_id, _number(request, "Upload-Offset"))
        return Response(status=status.HTTP_204_NO_CONTENT, headers=_progress(upload))

    @extend_schema(
        operation_id="uploads_destroy",
        summary="Give an upload up",
        tags=["uploads"],
        parameters=[_TUS],
        responses={204: None},
    )
    def delete(self, request: Request, public_id: UUID) -> Response:
        """Free what was received."""
        services.upload_abandon(upload_id=public_id, actor=request.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _append(request: Request, public_id: UUID, offset: int) -> Upload:
    try:
        return services.upload_append(
            upload_id=public_id,
            actor=request.user,
            offset=offset,
            chunks=_pieces(request),
            receipt=_receipt(request.headers.get("Upload-Checksum", "")),
            now=timezone.now(),
        )
    except UnreadablePostError as error:
        # Nobody reads this answer; what arrived is kept and HEAD will tell.
        raise errors.InvalidInputError({"": ["The part broke off; go on from there."]}) from error


def _pieces(request: Request) -> Iterator[bytes]:
    # Not through DRF's or Django's ``body``: either would read all of it into memory first.
    return iter(lambda: request._request.read(_PIECE), b"")  # noqa: SLF001 - no public name


def _progress(upload: Upload) -> dict[str, str]:
    headers = {"Upload-Offset": str(upload.offset_bytes)}
    if upload.state == UploadState.RECEIVING:
        headers["Upload-Expires"] = http_date(upload.expires_at.timestamp())
    if upload.version is not None:
        headers[_DATASET_HEADER] = f"{upload.version.dataset.public_id}/{upload.version.number}"
    return headers


def _expired(upload: Upload) -> bool:
    return upload.state == UploadState.RECEIVING and upload.expires_at <= timezone.now()


def _media_type(request: Request) -> str:
    return (request.content_type or "").split(";")[0].strip().lower()


def _length(request: Request) -> int:
    if "Upload-Defer-Length" in request.headers:
        raise _bad_header("Upload-Defer-Length", "say the file's length at the beginning")
    length = _number(request, "Upload-Length")
    if length > settings.STARLING["UPLOAD_MAX_MIB"] << 20:
        raise TooLargeError
    return length


class TooLargeError(APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"

    def __init__(self) -> None:
        super().__init__(
            f"a file may have at most {settings.STARLING['UPLOAD_MAX_MIB']:,} MiB;"
            " split it into several"
        )


def _number(request: Request, name: str) -> int:
    text = request.headers.get(name, "")
    # At most what a column holds; isascii: other scripts have digits too.
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _bad_header(name, "give a whole number of bytes")
    return int(text)


def _metadata(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in filter(None, (item.strip() for item in text.split(","))):
        key, _, value = item.partition(" ")
        try:
            pairs[key] = base64.b64decode(value.strip(), validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise _bad_header(
                "Upload-Metadata", f"the value of {key[:40]!r} must be UTF-8 text in base64"
            ) from error
    return pairs


def _receipt(text: str) -> storage.Receipt:
    if not text:
        return storage.NO_CHECKSUM
    algorithm, _, encoded = text.partition(" ")
    if algorithm not in _ALGORITHMS:
        raise _bad_header("Upload-Checksum", f"use one of {', '.join(_ALGORITHMS)}")
    try:
        digest = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad_header("Upload-Checksum", "write the sum in base64") from error
    return storage.Receipt(algorithm=algorithm, digest=digest)


def _bad_header(name: str, sentence: str) -> errors.InvalidInputError:
    return errors.InvalidInputError({name: [f"{sentence[:1].upper()}{sentence[1:]}."]})


urlpatterns = [
    path("uploads/", UploadListView.as_view(), name="upload-list"),
    path("uploads/<uuid:public_id>/", UploadDetailView.as_view(), name="upload-detail"),
]
