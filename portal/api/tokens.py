"""REST views of one's own tokens and account."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status, viewsets
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from cluster.api.base import UUID_PATTERN, StrictSerializer, as_uuid, refuse_unknown
from portal import selectors, services
from portal.models import ApiToken, Role


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """A token without its secret."""

    id = serializers.UUIDField(source="public_id", read_only=True)
    created_at = serializers.DateTimeField(source="created", read_only=True)
    expires_at = serializers.DateTimeField(source="expiry", read_only=True)
    has_expired = serializers.SerializerMethodField()
    starts_with = serializers.SerializerMethodField(help_text="to tell it from others")

    class Meta:
        model = ApiToken
        fields = [
            "id",
            "name",
            "starts_with",
            "created_at",
            "expires_at",
            "has_expired",
            "last_used_at",
        ]
        read_only_fields = fields

    def get_has_expired(self, token: ApiToken) -> bool:
        """Return whether it is refused by now."""
        return token.expiry is not None and token.expiry <= timezone.now()

    def get_starts_with(self, token: ApiToken) -> str:
        """Return the first characters of the secret, which open nothing."""
        return str(token.token_key)[:10]


class MadeTokenSerializer(TokenSerializer):
    """A token with its secret; it is shown this once."""

    token = serializers.CharField(read_only=True, help_text="keep it; it is shown this once")

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "token"]
        read_only_fields = fields


class NewTokenSerializer(StrictSerializer):
    """A token to be made."""

    name = serializers.CharField(max_length=80, help_text="for instance a computer's name")
    days = serializers.IntegerField(
        default=services.TOKEN_DAYS,
        min_value=1,
        max_value=services.MAX_TOKEN_DAYS,
        help_text="how long it lives",
    )


@extend_schema(tags=["account"])
class TokenViewSet(mixins.ListModelMixin, viewsets.GenericViewSet[ApiToken]):
    """One's own tokens; nobody sees another's, not even an admin."""

    serializer_class = TokenSerializer
    queryset = ApiToken.objects.none()
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    lookup_value_regex = UUID_PATTERN
    page_order = "-created"

    def get_queryset(self) -> Any:
        """Return the user's tokens."""
        user: Any = self.request.user
        return selectors.token_list(user)

    @extend_schema(summary="List your tokens")
    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Return your tokens, newest first, without their secrets."""
        refuse_unknown(request, ("limit", "cursor"))
        return super().list(request, *args, **kwargs)

    @extend_schema(
        summary="Make a token",
        request=NewTokenSerializer,
        responses={201: MadeTokenSerializer},
        examples=[
            OpenApiExample("For a laptop", request_only=True, value={"name": "laptop", "days": 90})
        ],
    )
    def create(self, request: Request) -> Response:
        """Make a token; its secret is in this answer and never shown again."""
        form = NewTokenSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        user: Any = request.user
        token, secret = services.token_create(user=user, now=timezone.now(), **form.validated_data)
        return Response(
            {**TokenSerializer(token).data, "token": secret}, status=status.HTTP_201_CREATED
        )

    @extend_schema(summary="Revoke a token", responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:  # noqa: A002 - the route's name
        """End a token at once."""
        user: Any = request.user
        services.token_revoke(user=user, public_id=as_uuid(id))
        return Response(status=status.HTTP_204_NO_CONTENT)


class UseSerializer(serializers.Serializer):
    """Limits of an account and what is used of them; null is no limit."""

    storage_used_bytes = serializers.IntegerField()
    storage_limit_bytes = serializers.IntegerField()
    active_jobs = serializers.IntegerField()
    max_active_jobs = serializers.IntegerField()
    max_gpus = serializers.IntegerField(allow_null=True)


class MeSerializer(serializers.Serializer):
    """The account that asks."""

    id = serializers.UUIDField(source="public_id")
    username = serializers.CharField()
    email = serializers.EmailField(allow_blank=True)
    role = serializers.ChoiceField(choices=Role.choices)
    use = serializers.SerializerMethodField()

    @extend_schema_field(UseSerializer)
    def get_use(self, user: Any) -> Any:
        """Return limits and use."""
        return UseSerializer(selectors.account_use(user)).data


class MeView(APIView):
    """The account that asks."""

    @extend_schema(tags=["account"], summary="Who am I", responses={200: MeSerializer})
    def get(self, request: Request) -> Response:
        """Return your profile, your limits, and what you use of them."""
        refuse_unknown(request, ())
        return Response(MeSerializer(request.user).data)
