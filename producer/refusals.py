"""Why a request is refused: a stable code, and what the caller can do about it."""

from enum import StrEnum


class Code(StrEnum):
    """The stable codes of all errors that a caller can get; a new one is one entry here."""

    INVALID_JSON = "invalid_json"
    DUPLICATE_FIELD = "duplicate_field"
    UNKNOWN_FIELD = "unknown_field"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    INVALID_VALUE = "invalid_value"
    OUT_OF_RANGE = "out_of_range"
    TOO_LONG = "too_long"
    EMPTY = "empty"
    UNSTORABLE_TEXT = "unstorable_text"
    CONFLICTING_FIELDS = "conflicting_fields"
    UNKNOWN_KIND = "unknown_kind"
    UNKNOWN_LANE = "unknown_lane"
    UNKNOWN_MODEL = "unknown_model"
    NOT_BEFORE_PAST_DEADLINE = "not_before_past_deadline"
    PROMPT_TOO_LONG = "prompt_too_long"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    BODY_TOO_LARGE = "body_too_large"
    WEBHOOK_TARGET_REFUSED = "webhook_target_refused"
    WEBHOOK_UNSIGNED = "webhook_unsigned"
    WEBHOOK_ENDPOINT_NOT_FOUND = "webhook_endpoint_not_found"
    WEBHOOK_ENDPOINT_DISABLED = "webhook_endpoint_disabled"
    WEBHOOK_TEST_FAILED = "webhook_test_failed"
    IDEMPOTENCY_CONFLICT = "idempotency_conflict"
    IDEMPOTENCY_UNSUPPORTED = "idempotency_unsupported"
    UNAUTHORIZED = "unauthorized"
    JOB_NOT_FOUND = "job_not_found"
    DELIVERY_NOT_FOUND = "delivery_not_found"
    RESPONSE_NOT_FOUND = "response_not_found"
    PREVIOUS_RESPONSE_NOT_FOUND = "previous_response_not_found"
    JOB_ENDED = "job_ended"
    JOB_NOT_FAILED = "job_not_failed"
    INVALID_FORM = "invalid_form"
    FILE_NOT_FOUND = "file_not_found"
    BATCH_NOT_FOUND = "batch_not_found"
    BATCH_ENDED = "batch_ended"
    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    MIXED_MODELS = "mixed_models"
    TOO_MANY_LINES = "too_many_lines"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    RATE_LIMITED = "rate_limit_exceeded"
    NOT_READY = "not_ready"
    DATABASE_UNAVAILABLE = "database_unavailable"
    INTERNAL_ERROR = "internal_error"


class Refusal(ValueError):
    """A request that is not carried out. `field` is the path of what is wrong, `limit` what holds there.

    Neither the message nor any other part quotes a prompt.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        field: str | None = None,
        limit: int | float | str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.code, self.message, self.field, self.limit, self.remedy = code, message, field, limit, remedy
        super().__init__(f"{field}: {message}" if field else message)
