"""Files as OpenAI's clients know them: what an upload brings, and how a file is shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, Field
from starlette.datastructures import FormData, UploadFile

from jobs.domain import openai_ids
from jobs.domain.openai_ids import Prefix
from jobs.store.files import File
from producer.refusals import Code, Refusal

MAX_FILE_BYTES = 200 * 2**20
MIN_EXPIRES_S, MAX_EXPIRES_S = 3_600, 2_592_000
_MAX_NAME_CHARS = 255
_FIELDS = {"file", "purpose", "expires_after[anchor]", "expires_after[seconds]"}


class FileView(BaseModel):
    """A stored file without its content."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str = Field(description="`batch` for what was uploaded, `batch_output` for what a batch wrote.")
    status: Literal["processed"] = "processed"
    status_details: None = None

    @classmethod
    def of(cls, file: File) -> Self:
        """The view of a stored file."""
        return cls(
            id=openai_ids.shown(Prefix.FILE, file.id),
            bytes=file.bytes,
            created_at=unix(file.created_at),
            expires_at=unix(file.expires_at) if file.expires_at else None,
            filename=file.filename,
            purpose=file.purpose,
        )


class DeletedFile(BaseModel):
    """A file that is no more."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that was checked; its content lies in a temporary file."""

    content: UploadFile
    filename: str
    purpose: str
    expires_s: int | None


def upload_of(form: FormData) -> Upload:
    """What a form asks to be stored. Raises `Refusal`."""
    fields: Mapping[str, UploadFile | str] = dict(form.multi_items())
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise Refusal(Code.UNKNOWN_FIELD, "There is no such field", field=unknown[0][:_MAX_NAME_CHARS])
    if len(form.multi_items()) > len(fields):
        raise Refusal(Code.DUPLICATE_FIELD, "A field is given twice", remedy="Send each field once.")
    content, purpose = fields.get("file"), fields.get("purpose")
    if not isinstance(content, UploadFile):
        raise Refusal(Code.MISSING_FIELD, "There is no file", field="file", remedy="Send it as a file.")
    if purpose != "batch":
        raise Refusal(
            Code.INVALID_VALUE,
            "Files are for batches here",
            field="purpose",
            limit="batch",
            remedy="Send purpose=batch.",
        )
    filename = (content.filename or "file").replace("\0", "")[:_MAX_NAME_CHARS]
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    return Upload(content, filename, purpose, _expires_s(anchor, seconds))


def _expires_s(anchor: object, seconds: object) -> int | None:
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise Refusal(
            Code.INVALID_VALUE,
            "A file expires some time after its creation",
            field="expires_after.anchor",
            limit="created_at",
        )
    if not isinstance(seconds, str) or not (seconds.isascii() and seconds.isdigit()):
        raise Refusal(Code.WRONG_TYPE, "Input should be whole seconds", field="expires_after.seconds")
    if len(seconds) > 9 or not MIN_EXPIRES_S <= int(seconds) <= MAX_EXPIRES_S:
        raise Refusal(
            Code.OUT_OF_RANGE,
            "Input should be between one hour and 30 days",
            field="expires_after.seconds",
            limit=MAX_EXPIRES_S,
        )
    return int(seconds)


def not_found(field: str = "file_id") -> Refusal:
    """The refusal for a file that the tenant does not have, whether or not another has it."""
    return Refusal(Code.FILE_NOT_FOUND, "No such file", field=field, remedy="It may have expired.")


def unix(moment: datetime) -> int:
    """Whole seconds since 1970, as the API shows times."""
    return int(moment.timestamp())
