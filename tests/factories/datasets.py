"""Datasets, versions and uploads; content is made by the services, so that it is real."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import factory
from factory.django import DjangoModelFactory

from jobs.models import Dataset, DatasetVersion, Upload
from tests.factories.portal import UserFactory

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


class DatasetFactory(DjangoModelFactory[Dataset]):
    """A private dataset without versions; the trait ``shared`` makes it everybody's."""

    class Meta:
        model = Dataset

    class Params:
        shared = factory.Trait(is_shared=True)

    owner = factory.SubFactory(UserFactory)
    name = factory.Sequence(lambda n: f"dataset {n}")
    created_at = NOW


class DatasetVersionFactory(DjangoModelFactory[DatasetVersion]):
    """A version that is still being unpacked."""

    class Meta:
        model = DatasetVersion

    dataset = factory.SubFactory(DatasetFactory)
    number = factory.Sequence(lambda n: n + 1)
    created_at = NOW


class UploadFactory(DjangoModelFactory[Upload]):
    """An upload of ten bytes of which none has come."""

    class Meta:
        model = Upload

    owner = factory.SubFactory(UserFactory)
    dataset_name = factory.Sequence(lambda n: f"dataset {n}")
    filename = "data.csv"
    length_bytes = 10
    created_at = NOW
    expires_at = NOW + timedelta(hours=24)
