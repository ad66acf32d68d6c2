"""Reads a JSON body by its form, in routes that take the body as it was sent."""

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from producer.api import bounded
from producer.api.services import Services
from producer.request import decode, refusal_of

Form = TypeVar("Form", bound=BaseModel)


def takes(form: type[BaseModel]) -> dict[str, Any]:
    """What a route says in the API's document of the body that it reads itself."""
    schema = form.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)  # the types that forms have are among the answers' too
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def read(request: Request, services: Services, form: type[Form]) -> Form:
    """The body; none at all is an empty object. Raises `Refusal`."""
    body = await bounded.whole(request, services.settings.api.max_body_bytes)
    try:
        return form.model_validate(decode(body or b"{}"))
    except ValidationError as error:
        raise refusal_of(error.errors(include_url=False, include_input=False)) from None
