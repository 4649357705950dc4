"""The committed OpenAPI document is that of the code."""

import json
import re
from collections.abc import Iterator
from typing import Any

from docs import api
from gateway.http.app import MAX_CREATES, MAX_REQUESTS, STOP_GRACE, route_table, routes_only
from gateway.http.middleware import BODY_IDLE
from gateway.http.proxy import CLIENT_IDLE
from gateway.services.sandboxes import MAX_WAITS, RETRIES_PER_SECOND
from gateway.wire import limits


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            yield from refs(item)
    elif isinstance(value, list):
        for item in value:
            yield from refs(item)


def test_the_committed_document_is_that_of_the_code() -> None:
    assert api.DOCUMENT.read_text() == api.openapi(), "run: make docs"


def test_the_page_is_that_of_the_code() -> None:
    page = api.PAGE.read_text()
    assert api.rendered(page, json.loads(api.openapi())) == page, "run: make docs"


def test_every_table_of_the_page_is_made() -> None:
    page = api.PAGE.read_text()
    assert page.count("<!-- end -->") == len(api.MODELS) + 4
    assert not re.search(r"<!-- (\w+) -->\n<!-- end -->", page)


def test_every_field_is_explained_and_every_type_is_on_the_page() -> None:
    page = api.PAGE.read_text()
    for group in api.MODELS.values():
        for model in group:
            bare = [row for row in api.fields_of(model).splitlines() if row.endswith("|  |")]
            assert not bare, f"{model.__name__}: a docstring below the field says what it is"
    headings = {heading.lower() for heading in re.findall(r"^#+ (\w+)$", page, flags=re.MULTILINE)}
    assert set(re.findall(r"\]\(#(\w+)\)", page)) <= headings


def test_every_route_is_in_the_document_and_nothing_else() -> None:
    app = routes_only()
    document = app.openapi()
    documented = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert documented == route_table(app)


def test_every_reference_leads_somewhere() -> None:
    document = routes_only().openapi()
    schemas = document["components"]["schemas"]
    assert {ref.removeprefix("#/components/schemas/") for ref in refs(document)} <= set(schemas)


def test_every_operation_documents_its_errors_and_its_token() -> None:
    for operations in routes_only().openapi()["paths"].values():
        for operation in operations.values():
            content = operation["responses"]["default"]["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorBody"}
            assert (operation["security"] == []) == (operation["x-access"] == "none")
            assert "422" not in operation["responses"]


def test_names_of_operations_are_unique() -> None:
    paths = routes_only().openapi()["paths"].values()
    names = [operation["operationId"] for operations in paths for operation in operations.values()]
    assert len(names) == len(set(names))


def test_numbers_in_the_prose_are_those_of_the_code() -> None:
    page = api.PAGE.read_text()
    assert f"{MAX_REQUESTS} calls at once" in page
    assert f"{MAX_CREATES} creates among them" in page
    assert f"{MAX_WAITS} creates wait" in page
    assert ("with 10000 waiting,\n100 s" in page) == (RETRIES_PER_SECOND == 100)
    assert ("for two minutes is cut off" in page) == (BODY_IDLE == CLIENT_IDLE == 120)
    assert ("calls get two seconds" in page) == (STOP_GRACE == 2)


def test_raw_routes_document_the_bounds_that_they_check() -> None:
    paths = routes_only().openapi()["paths"]
    after = paths["/v1/exec/{session_id}/stream"]["get"]["parameters"][1]
    assert after["schema"] == {"type": "integer", "minimum": 0, "maximum": limits.MAX_INTEGER, "default": 0}


def test_the_document_offers_no_scope_that_is_always_refused() -> None:
    schemas = routes_only().openapi()["components"]["schemas"]
    assert schemas["TokenRequest"]["properties"]["scope"]["enum"] == ["client", "operator"]
