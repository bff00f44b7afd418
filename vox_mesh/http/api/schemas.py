"""JSON Schemas of manifests, proofs, op log entries and the documents of the rhythm."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.http.api.operations import Operations, Text
from vox_mesh.http.api.pages import Page, PageQuery
from vox_mesh.http.principals.needs import NOTHING
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views import schemas
from vox_mesh.views.schemas import SchemaView

SCHEMAS: Final = Operations("schemas")


@SCHEMAS.get("/v1/schemas", needs=NOTHING)
async def list_schemas(mesh: MeshServices, query: PageQuery) -> Page[SchemaView]:
    """List the JSON Schemas."""
    return query.page_of(schemas.list_schemas(), lambda view: view.name)


@SCHEMAS.get("/v1/schemas/{name}", needs=NOTHING)
async def show_schema(mesh: MeshServices, name: Text) -> dict[str, Any]:
    """Return a JSON Schema."""
    return schemas.find_schema(name)
