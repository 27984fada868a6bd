"""Files of datasets, code and attempts below the state folder; knows no rows."""

from jobs.storage.archives import is_archive, unpack
from jobs.storage.beneath import open_beneath, remove_tree
from jobs.storage.contents import (
    ContentSummary,
    FileEntry,
    Tree,
    UnpackLimits,
    file_chunks,
    file_sha256,
    iter_entries,
)
from jobs.storage.locks import Busy, locked
from jobs.storage.names import safe_filename
from jobs.storage.paths import (
    attempt_dir,
    code_dir,
    content_dir,
    content_index,
    contents_lock,
    preview_dir,
    run_lock,
    sample_dir,
    staging_dir,
    unpacking_lock,
    upload_path,
)
from jobs.storage.previews import (
    ArraysPreview,
    ArraySummary,
    TablePreview,
    TextPreview,
    preview_arrays,
    preview_table,
    preview_text,
    thumbnail,
)
from jobs.storage.uploads import NO_CHECKSUM, Receipt, UploadFile

__all__ = [
    "NO_CHECKSUM",
    "ArraySummary",
    "ArraysPreview",
    "Busy",
    "ContentSummary",
    "FileEntry",
    "Receipt",
    "TablePreview",
    "TextPreview",
    "Tree",
    "UnpackLimits",
    "UploadFile",
    "attempt_dir",
    "code_dir",
    "content_dir",
    "content_index",
    "contents_lock",
    "file_chunks",
    "file_sha256",
    "is_archive",
    "iter_entries",
    "locked",
    "open_beneath",
    "preview_arrays",
    "preview_dir",
    "preview_table",
    "preview_text",
    "remove_tree",
    "run_lock",
    "safe_filename",
    "sample_dir",
    "staging_dir",
    "thumbnail",
    "unpack",
    "unpacking_lock",
    "upload_path",
]
