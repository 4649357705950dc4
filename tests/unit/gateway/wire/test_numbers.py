"""Every number that comes over the wire has a floor and a ceiling, and whole numbers are what JSON Schema calls so."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from gateway import wire
from gateway.http.app import routes_only
from gateway.http.routes import parameters
from gateway.wire import limits
from gateway.wire.base import WireRequest
from gateway.wire.capacity import PrepareRequest
from gateway.wire.exec import SignalRequest
from gateway.wire.nodes import Heartbeat
from gateway.wire.sandboxes import SandboxSpec

LEAST = ("minimum", "exclusiveMinimum")
MOST = ("maximum", "exclusiveMaximum")


def requests() -> list[type[WireRequest]]:
    """Return all models of requests and of query strings."""
    for module in pkgutil.iter_modules(wire.__path__):
        importlib.import_module(f"gateway.wire.{module.name}")
    assert parameters.QueryModel in WireRequest.__subclasses__()
    found, rest = [], [WireRequest]
    while rest:
        below = rest.pop().__subclasses__()
        found += below
        rest += below
    return found


def unbounded(schema: Any, where: str = "") -> Iterator[str]:
    """Yield where a JSON Schema admits numbers without a floor or without a ceiling."""
    if isinstance(schema, list):
        for place, item in enumerate(schema):
            yield from unbounded(item, f"{where}.{place}")
    elif isinstance(schema, dict):
        is_number = schema.get("type") in ("integer", "number") and not {"enum", "const"} & set(schema)
        if is_number and not (any(key in schema for key in LEAST) and any(key in schema for key in MOST)):
            yield where
        for key, item in schema.items():
            yield from unbounded(item, f"{where}.{key}")


@pytest.mark.parametrize("model", requests(), ids=lambda model: model.__name__)
def test_every_number_of_a_request_has_both_bounds(model: type[WireRequest]) -> None:
    assert list(unbounded(model.model_json_schema())) == []


def test_every_number_that_the_document_admits_has_both_bounds() -> None:
    document = routes_only().openapi()
    found = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            asked = [operation.get("parameters", []), operation.get("requestBody", {})]
            found += [f"{method} {path}{where}" for where in unbounded(asked)]
    assert found == []


@pytest.mark.parametrize("model", requests(), ids=lambda model: model.__name__)
def test_no_number_of_a_request_is_infinite(model: type[WireRequest]) -> None:
    for name, field in model.model_fields.items():
        for number in (float("inf"), float("-inf"), float("nan")):
            with pytest.raises(ValidationError) as refused:
                model.model_validate({name: number})
            assert any(problem["loc"][0] == name for problem in refused.value.errors()), (name, field)


@pytest.mark.parametrize("cpus", [5e-324, 1e-9, 0.0099, 0.0, -1.0, 1e308])
def test_no_amount_of_cores_is_too_small_to_count_with(cpus: float) -> None:
    with pytest.raises(ValidationError):
        PrepareRequest(count=1, cpus=cpus)
    with pytest.raises(ValidationError):
        SandboxSpec(image="alpine", cpus=cpus)


def test_a_float_without_a_fraction_is_a_whole_number() -> None:
    spec = SandboxSpec.model_validate({"image": "a", "memory_mb": 512.0, "ttl_seconds": 53.0, "gpus": 2.0})
    assert (spec.memory_mb, spec.ttl_seconds, spec.gpus) == (512, 53, 2)
    assert json.loads(spec.model_dump_json())["memory_mb"] == 512
    nested = SandboxSpec.model_validate({"image": "a", "security": {"pids_limit": 64.0}})
    assert nested.security.pids_limit == 64
    assert SignalRequest.model_validate({"signal": 9.0}).signal == 9
    assert parameters.LogQuery.model_validate({"offset": "53.0"}).offset == 53


@pytest.mark.parametrize("value", ["512", True, 512.5, 1e300, float("nan"), float("inf"), [512]])
def test_nothing_else_is_a_whole_number(value: object) -> None:
    with pytest.raises(ValidationError):
        SandboxSpec.model_validate({"image": "a", "memory_mb": value})


def test_numbers_of_a_heartbeat_fit_the_columns_of_every_database() -> None:
    bounds = Heartbeat.model_json_schema()
    assert bounds["properties"]["sequence"]["maximum"] == limits.MAX_COUNTER
    assert bounds["$defs"]["InventoryItem"]["properties"]["generation"]["maximum"] == limits.MAX_COUNTER
