"""Who is asking: the tenant that the request's API key speaks for."""

from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from jobs.store.tenants import Tenant
from producer.api.services import Shared
from producer.refusals import Code, Refusal

_bearer = HTTPBearer(
    auto_error=False, scheme_name="API key", description="`trilane keys create --tenant NAME` makes one."
)


async def authenticate(
    services: Shared, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Tenant:
    """The tenant whose key the request brings. Raises `Refusal`."""
    tenant = await services.keys.tenant(given.credentials) if given else None
    if tenant is None:
        raise Refusal(
            Code.UNAUTHORIZED,
            "The API key is missing, unknown or revoked",
            field="Authorization",
            remedy="Send Authorization: Bearer trl_...",
        )
    return tenant


CurrentTenant = Annotated[Tenant, Depends(authenticate)]
