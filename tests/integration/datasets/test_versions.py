from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from PIL import Image

from jobs import dispatch, selectors, services, storage, tasks
from jobs.errors import (
    InvalidInputError,
    NotFoundError,
    NotPossibleNowError,
    QuotaExceededError,
    UploadGoneError,
    UploadLockedError,
    UploadOffsetError,
)
from jobs.lifecycle import JobStatus
from jobs.models import (
    CodeBundle,
    Content,
    Dataset,
    DatasetVersion,
    Job,
    JobDataset,
    JobEvent,
    Upload,
    VersionState,
)
from jobs.models.dataset import UploadState
from jobs.signals import dataset_changed
from portal.models import User
from tests.factories.datasets import UploadFactory
from tests.factories.jobs import JobFactory
from tests.integration.datasets.conftest import sha256
from tests.unit.storage.archives import tar_member, tarred, zipped

Receive = Callable[..., DatasetVersion]
Unpack = Callable[[DatasetVersion], DatasetVersion]
pytestmark = pytest.mark.django_db


def test_an_upload_becomes_a_version_with_its_files(
    student: User, receive: Receive, unpack: Unpack
) -> None:
    content = zipped([("cats/1.txt", b"meow"), ("dogs/1.txt", b"wuff")])

    version = unpack(receive(student, content, "pets.zip", "pets", sha256(content)))

    assert (version.state, version.number, version.error) == (VersionState.READY, 1, "")
    assert version.upload_sha256 == sha256(content)
    page = selectors.version_files(version)
    assert [(e.path, e.size_bytes) for e in page.entries] == [("cats/1.txt", 4), ("dogs/1.txt", 4)]
    with selectors.version_file_open(version, "dogs/1.txt") as file:
        assert file.read() == b"wuff"
    assert not any(storage.upload_path(UUID(int=0)).parent.iterdir())


def test_a_single_file_is_kept_under_its_name(
    student: User, receive: Receive, unpack: Unpack
) -> None:
    version = unpack(receive(student, b"x,y\n1,2\n", "my data.csv"))

    assert [e.path for e in selectors.version_files(version).entries] == ["my data.csv"]


def test_the_same_name_again_is_the_next_version_and_the_same_content_is_stored_once(
    student: User, receive: Receive, unpack: Unpack
) -> None:
    first = unpack(receive(student, b"1"))
    second = unpack(receive(student, b"1"))
    third = unpack(receive(student, b"2"))

    assert [v.number for v in (first, second, third)] == [1, 2, 3]
    assert first.dataset == second.dataset == third.dataset
    assert first.content == second.content != third.content
    assert selectors.storage_used_bytes(student) == 2


def test_the_same_name_of_another_owner_is_another_dataset(
    student: User, other_student: User, receive: Receive
) -> None:
    mine, theirs = receive(student, b"1"), receive(other_student, b"1")

    assert mine.dataset != theirs.dataset


def test_a_hostile_archive_fails_with_a_sentence_and_leaves_nothing(
    student: User, receive: Receive, unpack: Unpack, state: Path
) -> None:
    content = tarred([tar_member("good", b"1"), tar_member("../evil", b"2")], "gz")

    version = unpack(receive(student, content, "a.tar.gz"))

    assert version.state == VersionState.FAILED
    assert "'../evil'" in version.error
    assert "upload it again" in version.error
    assert [p for p in state.rglob("*") if p.is_file() and p.parent.name != "run"] == []
    with pytest.raises(NotPossibleNowError):
        selectors.version_preview(version)


def test_bytes_that_are_not_what_was_announced_fail(
    student: User, receive: Receive, unpack: Unpack
) -> None:
    version = unpack(receive(student, b"arrived", sha256=sha256(b"sent")))

    assert version.state == VersionState.FAILED
    assert sha256(b"arrived") in version.error


def test_an_archive_that_unpacks_to_more_than_the_quota_fails_and_says_so(
    student: User, receive: Receive, unpack: Unpack
) -> None:
    student.storage_quota_mib = 1
    student.save()

    version = unpack(receive(student, zipped([("zeros", bytes(2 << 20))]), "a.zip"))

    assert version.state == VersionState.FAILED
    assert "quota" in version.error


def test_a_full_disk_fails_with_a_sentence(
    student: User, receive: Receive, unpack: Unpack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    version = receive(student, zipped([("a", b"1")]), "a.zip")
    monkeypatch.setattr(os, "fsync", full)

    assert "disk is full" in unpack(version).error


def test_a_large_version_is_left_to_the_unpacker(
    student: User, receive: Receive, now: datetime
) -> None:
    bomb = receive(student, zipped([("zeros", bytes(80 << 20))]), "a.zip")

    done = services.dataset_unpack(version_id=bomb.public_id, now=now, brief=True)

    bomb.refresh_from_db()
    assert not done
    assert bomb.state == VersionState.UNPACKING
    assert services.unpack_pending(now=now) == 1
    bomb.refresh_from_db()
    assert bomb.state == VersionState.READY


def test_a_version_is_unpacked_by_one_process_at_a_time(
    student: User, receive: Receive, now: datetime
) -> None:
    version = receive(student, b"1")

    with storage.locked(storage.unpacking_lock(str(version.public_id)), wait=False):
        assert services.dataset_unpack(version_id=version.public_id, now=now)

    version.refresh_from_db()
    assert version.state == VersionState.UNPACKING


def test_a_version_whose_unpacker_dies_again_and_again_fails(
    student: User, receive: Receive, unpack: Unpack, monkeypatch: pytest.MonkeyPatch, now: datetime
) -> None:
    class Killed(BaseException):
        pass

    def killed(*args: object) -> None:
        raise Killed

    version = receive(student, zipped([("a", b"1")]), "a.zip")
    monkeypatch.setattr(storage, "unpack", killed)
    for _ in range(3):
        with pytest.raises(Killed):
            services.dataset_unpack(version_id=version.public_id, now=now)

    assert "several times" in unpack(version).error


def test_unpacking_twice_is_unpacking_once(student: User, receive: Receive, unpack: Unpack) -> None:
    version = unpack(receive(student, b"1"))
    content = version.content

    assert unpack(version).content == content


def test_a_version_that_becomes_ready_is_announced(
    student: User,
    receive: Receive,
    unpack: Unpack,
    django_capture_on_commit_callbacks: Callable[..., object],
) -> None:
    heard: list[UUID] = []

    def listen(version_id: UUID, **_: object) -> None:
        heard.append(version_id)

    version = receive(student, b"1")
    dataset_changed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            unpack(version)
    finally:
        dataset_changed.disconnect(listen)

    assert heard == [version.public_id]


class TestUpload:
    def create(self, owner: User, now: datetime, **changes: object) -> Upload:
        fields: dict[str, object] = {
            "dataset_name": "d",
            "filename": "d.csv",
            "length_bytes": 6,
            "sha256": "",
        } | changes
        return services.upload_create(owner=owner, now=now, **fields)  # type: ignore[arg-type]

    def append(
        self, upload: Upload, offset: int, *chunks: bytes, actor: User, now: datetime
    ) -> Upload:
        return services.upload_append(
            upload_id=upload.public_id, actor=actor, offset=offset, chunks=chunks, now=now
        )

    def test_the_quota_holds_before_the_transfer_and_over_uploads_at_once(
        self, student: User, now: datetime
    ) -> None:
        student.storage_quota_mib = 1
        student.save()
        self.create(student, now, length_bytes=700_000)

        with pytest.raises(QuotaExceededError) as refused:
            self.create(student, now, length_bytes=700_000)

        assert (refused.value.used, refused.value.limit) == (700_000, 1 << 20)

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("length", {"length_bytes": 0}),
            ("length", {"length_bytes": 1 << 50}),
            ("sha256", {"sha256": "abc"}),
            ("dataset", {"dataset_name": "n" * 121}),
            ("dataset", {"dataset_name": "a\0b"}),
        ],
    )
    def test_bad_input_is_refused_by_field(
        self, student: User, now: datetime, field: str, changes: dict[str, object]
    ) -> None:
        with pytest.raises(InvalidInputError) as refused:
            self.create(student, now, **changes)

        assert list(refused.value.fields) == [field]

    def test_without_a_name_the_dataset_is_called_after_the_file(
        self, student: User, now: datetime
    ) -> None:
        upload = self.create(student, now, dataset_name="", filename="my pets.tar.gz")

        assert upload.dataset_name == "my pets"

    def test_a_part_must_begin_where_the_last_one_ended(self, student: User, now: datetime) -> None:
        upload = self.create(student, now)
        self.append(upload, 0, b"abc", actor=student, now=now)

        for offset in (0, 2, 4):
            with pytest.raises(UploadOffsetError) as refused:
                self.append(upload, offset, b"x", actor=student, now=now)
            assert refused.value.expected == 3

    def test_a_second_writer_is_refused(self, student: User, now: datetime) -> None:
        upload = self.create(student, now)

        with storage.UploadFile.held(upload.public_id), pytest.raises(UploadLockedError):
            self.append(upload, 0, b"abc", actor=student, now=now)

    @pytest.mark.parametrize("other", ["other_student", "instructor"])
    def test_nobody_else_writes_to_it(
        self, student: User, other: str, request: pytest.FixtureRequest, now: datetime
    ) -> None:
        upload = self.create(student, now)
        actor = request.getfixturevalue(other)

        with pytest.raises(NotFoundError):
            self.append(upload, 0, b"abc", actor=actor, now=now)
        with pytest.raises(NotFoundError):
            services.upload_abandon(upload_id=upload.public_id, actor=actor)

    def test_one_that_was_given_up_takes_nothing_and_frees_the_quota(
        self, student: User, now: datetime
    ) -> None:
        upload = self.create(student, now)
        self.append(upload, 0, b"abc", actor=student, now=now)

        services.upload_abandon(upload_id=upload.public_id, actor=student)

        assert not storage.upload_path(upload.public_id).exists()
        assert selectors.storage_used_bytes(student) == 0
        with pytest.raises(UploadGoneError):
            self.append(upload, 3, b"def", actor=student, now=now)

    def test_one_that_is_given_up_while_a_part_arrives_becomes_nothing(
        self, student: User, now: datetime
    ) -> None:
        upload = self.create(student, now)

        def chunks():
            yield b"abc"
            services.upload_abandon(upload_id=upload.public_id, actor=student)
            yield b"def"

        with pytest.raises(UploadGoneError):
            services.upload_append(
                upload_id=upload.public_id, actor=student, offset=0, chunks=chunks(), now=now
            )

        assert not DatasetVersion.objects.exists()

    def test_every_part_gives_it_more_time(self, student: User, now: datetime) -> None:
        upload = self.create(student, now)
        later = now + timedelta(hours=20)
        self.append(upload, 0, b"abc", actor=student, now=later)

        assert self.append(
            upload, 3, b"def", actor=student, now=later + timedelta(hours=20)
        ).version

    def test_one_that_was_left_alone_is_gone(self, student: User, now: datetime) -> None:
        upload = self.create(student, now)

        with pytest.raises(UploadGoneError):
            self.append(upload, 0, b"abc", actor=student, now=now + timedelta(hours=25))


class TestSweep:
    def test_parts_that_were_left_alone_are_collected(self, student: User, now: datetime) -> None:
        left = services.upload_create(
            owner=student, dataset_name="d", filename="d", length_bytes=6, now=now
        )
        services.upload_append(
            upload_id=left.public_id, actor=student, offset=0, chunks=[b"abc"], now=now
        )

        services.sweep_uploads(now=now + timedelta(hours=23))
        assert storage.upload_path(left.public_id).exists()

        services.sweep_uploads(now=now + timedelta(hours=25))
        left.refresh_from_db()
        assert left.state == UploadState.ABANDONED
        assert not storage.upload_path(left.public_id).exists()

        services.sweep_uploads(now=now + timedelta(days=9))
        assert not Upload.objects.exists()

    def test_one_that_is_being_written_is_not_collected(self, student: User, now: datetime) -> None:
        upload = UploadFactory(owner=student, expires_at=now)

        with storage.UploadFile.held(upload.public_id):
            services.sweep_uploads(now=now + timedelta(hours=1))

        upload.refresh_from_db()
        assert upload.state == UploadState.RECEIVING

    def test_files_that_nobody_has_are_removed_once_they_are_old(
        self, now: datetime, state: Path
    ) -> None:
        old = (now - timedelta(days=2)).timestamp()
        strays = [
            state / "uploads" / "stray",
            state / "staging" / "stray",
            state / "uploads" / "new",
        ]
        for stray in strays:
            stray.parent.mkdir(parents=True, exist_ok=True)
        strays[0].touch()
        strays[1].mkdir()
        for stray in strays[:2]:
            os.utime(stray, (old, old))
        strays[2].touch()
        os.utime(strays[2], (now.timestamp(), now.timestamp()))

        services.sweep_uploads(now=now)

        assert [stray.exists() for stray in strays] == [False, False, True]

    def test_a_file_whose_server_ended_with_its_last_byte_becomes_a_version(
        self, student: User, unpack: Unpack, now: datetime
    ) -> None:
        upload = UploadFactory(owner=student, offset_bytes=10, length_bytes=10)
        with storage.UploadFile.held(upload.public_id):
            services.sweep_uploads(now=now)
            assert not DatasetVersion.objects.exists()
        storage.upload_path(upload.public_id).write_bytes(b"0123456789")

        services.sweep_uploads(now=now)

        assert unpack(DatasetVersion.objects.get()).state == VersionState.READY

    def test_what_waits_is_asked_for_again(
        self, student: User, receive: Receive, now: datetime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[UUID] = []
        version = receive(student, b"1")
        monkeypatch.setattr(dispatch, "request_unpacking", asked.append)

        services.sweep_uploads(now=now)

        assert asked == [version.public_id]


class TestDelete:
    def test_content_goes_with_the_last_version_that_has_it(
        self, student: User, other_student: User, receive: Receive, unpack: Unpack, now: datetime
    ) -> None:
        mine, theirs = unpack(receive(student, b"1")), unpack(receive(other_student, b"1"))
        assert mine.content is not None
        folder = storage.content_dir(mine.content.sha256)

        services.dataset_delete(dataset_id=mine.dataset.public_id, actor=student, now=now)
        services.sweep_uploads(now=now)
        assert folder.exists()
        assert selectors.storage_used_bytes(student) == 0

        services.dataset_delete(dataset_id=theirs.dataset.public_id, actor=other_student, now=now)
        services.sweep_uploads(now=now)
        assert not folder.parent.exists()
        assert not Content.objects.exists()

    @pytest.mark.parametrize("other", ["other_student", "instructor"])
    def test_nobody_else_deletes_or_changes_it(
        self,
        student: User,
        other: str,
        request: pytest.FixtureRequest,
        receive: Receive,
        now: datetime,
    ) -> None:
        dataset_id = receive(student, b"1").dataset.public_id
        actor = request.getfixturevalue(other)

        with pytest.raises(NotFoundError):
            services.dataset_delete(dataset_id=dataset_id, actor=actor, now=now)
        with pytest.raises(NotFoundError):
            services.dataset_update(dataset_id=dataset_id, actor=actor, name="mine")

    def test_an_admin_does(
        self, student: User, admin: User, receive: Receive, now: datetime
    ) -> None:
        dataset_id = receive(student, b"1").dataset.public_id

        services.dataset_delete(dataset_id=dataset_id, actor=admin, now=now)

        assert not Dataset.objects.exists()

    def test_one_that_is_deleted_while_it_waits_leaves_nothing(
        self,
        student: User,
        receive: Receive,
        now: datetime,
        state: Path,
        django_capture_on_commit_callbacks: Callable[..., object],
    ) -> None:
        version = receive(student, b"1")
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            services.dataset_delete(dataset_id=version.dataset.public_id, actor=student, now=now)

        assert services.dataset_unpack(version_id=version.public_id, now=now)

        assert not any((state / "uploads").iterdir())

    def test_one_that_a_job_uses_stays_until_the_job_is_over(
        self, student: User, receive: Receive, unpack: Unpack, now: datetime
    ) -> None:
        version = unpack(receive(student, b"1"))
        job = JobFactory(owner=student, name="training")
        JobDataset.objects.create(job=job, version=version, name="data")
        dataset_id = version.dataset.public_id

        with pytest.raises(NotPossibleNowError, match="training"):
            services.dataset_delete(dataset_id=dataset_id, actor=student, now=now)

        Job.objects.update(status=JobStatus.SUCCEEDED)
        services.dataset_delete(dataset_id=dataset_id, actor=student, now=now)

        assert not Dataset.objects.exists()
        event = JobEvent.objects.get(job=job, code="dataset_deleted")
        assert (event.text, event.actor) == ("The dataset digits, version 1, was deleted.", student)


class TestTask:
    def test_a_small_version_is_unpacked_by_the_task(
        self, student: User, receive: Receive, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        version = receive(student, b"1")
        monkeypatch.setattr(services, "unpacker_start", pytest.fail)

        tasks.dataset_unpack(str(version.public_id))

        version.refresh_from_db()
        assert version.state == VersionState.READY

    def test_a_large_one_by_a_program_of_its_own(
        self, student: User, receive: Receive, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        version = receive(student, zipped([("zeros", bytes(80 << 20))]), "a.zip")
        started: list[bool] = []
        monkeypatch.setattr(services, "unpacker_start", lambda: started.append(True))

        tasks.dataset_unpack(str(version.public_id))

        assert started == [True]

    def test_no_program_is_started_where_every_place_is_taken(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(subprocess, "Popen", pytest.fail)

        with ExitStack() as held:
            for place in range(2):
                lock = storage.unpacking_lock(f"place-{place}")
                held.enter_context(storage.locked(lock, wait=False))
            services.unpacker_start()


class TestUnusedCode:
    def test_code_of_no_job_goes_after_a_week_and_its_files_with_the_last_bundle(
        self, student: User, other_student: User, now: datetime
    ) -> None:
        mine, theirs = (
            services.code_create(owner=owner, filename="a.py", content=b"1", now=now)
            for owner in (student, other_student)
        )
        used = JobFactory(owner=other_student, code=theirs)

        services.sweep_uploads(now=now + timedelta(days=6))
        assert CodeBundle.objects.count() == 2

        services.sweep_uploads(now=now + timedelta(days=8))
        assert list(CodeBundle.objects.all()) == [theirs]
        assert storage.code_dir(mine.sha256).exists()

        used.delete()
        services.sweep_uploads(now=now + timedelta(days=8))
        assert not storage.code_dir(mine.sha256).exists()


class TestSharing:
    def test_students_do_not_share(self, student: User, receive: Receive) -> None:
        dataset = receive(student, b"1").dataset

        with pytest.raises(InvalidInputError):
            services.dataset_update(dataset_id=dataset.public_id, actor=student, is_shared=True)

    def test_a_shared_dataset_is_everybodys_to_see(
        self, instructor: User, student: User, receive: Receive, unpack: Unpack
    ) -> None:
        version = unpack(receive(instructor, b"1"))
        dataset_id = version.dataset.public_id
        with pytest.raises(NotFoundError):
            selectors.dataset_get(student, dataset_id)

        services.dataset_update(dataset_id=dataset_id, actor=instructor, is_shared=True)

        assert selectors.dataset_get(student, dataset_id)
        assert selectors.version_get(student, dataset_id, 1) == version
        assert list(selectors.version_list_ready(student)) == [version]

    def test_a_name_is_had_once(self, student: User, receive: Receive) -> None:
        receive(student, b"1", name="taken")
        dataset = receive(student, b"1", name="free").dataset

        with pytest.raises(InvalidInputError):
            services.dataset_update(dataset_id=dataset.public_id, actor=student, name=" taken ")


class TestFromPath:
    def test_a_folder_is_a_dataset_once(self, admin: User, tmp_path: Path, now: datetime) -> None:
        folder = tmp_path / "sample"
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "1").write_bytes(b"1")
        (folder / "link").symlink_to("/etc/passwd")

        versions = [
            services.dataset_create_from_path(
                owner=admin, name="sample", path=folder, is_shared=True, now=now
            )
            for _ in range(2)
        ]

        assert versions[0] == versions[1]
        assert [e.path for e in selectors.version_files(versions[0]).entries] == ["a/1"]

    def test_the_sample_that_comes_with_the_product(self, admin: User, now: datetime) -> None:
        version = services.dataset_create_from_path(
            owner=admin, name="digits", path=storage.sample_dir("digits"), is_shared=True, now=now
        )

        table = selectors.version_preview(version).tables[0]
        assert (len(table.header), table.header[-1], len(table.rows)) == (65, "label", 20)
        assert "BSD" in selectors.version_preview(version).texts[0].text

    def test_nothing_at_the_path(self, admin: User, tmp_path: Path, now: datetime) -> None:
        with pytest.raises(InvalidInputError):
            services.dataset_create_from_path(
                owner=admin, name="sample", path=tmp_path / "no", now=now
            )


def test_a_preview_shows_some_of_every_kind(
    student: User, receive: Receive, unpack: Unpack, tmp_path: Path
) -> None:
    Image.new("RGB", (8, 8), "red").save(tmp_path / "x.png")
    pixel = (tmp_path / "x.png").read_bytes()
    members = [(f"{kind}/{n}.png", pixel) for kind in ("cat", "dog") for n in range(30)]
    content = zipped([*members, ("labels.csv", b"a,b\n1,2\n"), ("README.md", b"# hello")])

    version = unpack(receive(student, content, "pets.zip"))
    preview = selectors.version_preview(version)

    assert len(preview.images) == 24
    assert {path.split("/")[0] for path in preview.images} == {"cat", "dog"}
    assert selectors.version_thumbnail(version, preview.images[0]).exists()
    assert preview.tables[0].rows == (("1", "2"),)
    assert preview.texts[0].text == "# hello"


def test_files_that_are_gone_from_the_disk_are_said_to_be(
    student: User, receive: Receive, unpack: Unpack
) -> None:
    version = unpack(receive(student, b"1"))
    assert version.content is not None
    storage.remove_tree(storage.content_dir(version.content.sha256).parent)

    with pytest.raises(NotPossibleNowError, match="administrators"):
        selectors.version_preview(version)


def test_files_come_in_pages(student: User, receive: Receive, unpack: Unpack) -> None:
    content = zipped((f"{n:03}", b"") for n in range(25))
    version = unpack(receive(student, content, "a.zip"))

    pages = [selectors.version_files(version, offset=o, limit=10) for o in (0, 10, 20, 30)]

    assert [len(p.entries) for p in pages] == [10, 10, 5, 0]
    assert [p.has_more for p in pages] == [True, True, False, False]


def test_a_list_of_datasets_takes_few_queries(
    student: User, receive: Receive, django_assert_max_num_queries: Callable[[int], object]
) -> None:
    for n in range(5):
        receive(student, b"1", name=f"d{n}")

    with django_assert_max_num_queries(2):  # type: ignore[attr-defined]
        for dataset in selectors.dataset_list(student):
            assert dataset.owner.username
            assert [v.content for v in dataset.versions.all()] == [None]
