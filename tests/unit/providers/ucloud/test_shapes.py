"""The emulator's answers have the shapes that UCloud's source gives them: every key, and no other."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
import requests

from autoscaler.user_data import ucloud_init_script
from providers.base import OPERATION_LABEL, USER_DATA_LABEL
from providers.ucloud import mapping
from tests.fakes.ucloud import cluster
from tests.fakes.ucloud.auth import API_TOKEN, PROJECT, REFRESH_TOKEN
from tests.fakes.ucloud.lab import FOLDER, Lab, order

Shape = Mapping[str, Any]
TEXT, NUMBER, FLAG, NOTHING = str, int, bool, type(None)
UNION = "type path mountPath readOnly value hostname jobId id specification modules port tls server token tokenType"
"""Every value object comes back with all keys of its union."""
UPDATE: Shape = {
    "timestamp": NUMBER,
    "state": (TEXT, NOTHING),
    "status": (TEXT, NOTHING),
    "outputFolder": NOTHING,
    "resourceList": NOTHING,
}
STATUS: Shape = {
    "state": TEXT,
    "jobParametersJson": (dict, NOTHING),
    "startedAt": (NUMBER, NOTHING),
    "expiresAt": NOTHING,
    "resolvedApplication": (dict, NOTHING),
    "resolvedProduct": NOTHING,
    "resolvedSupport": NOTHING,
    "allowRestart": FLAG,
}
JOB: Shape = {
    "id": TEXT,
    "createdAt": NUMBER,
    "owner": {"createdBy": TEXT, "project": (TEXT, NOTHING)},
    "permissions": {"myself": list, "others": NOTHING},
    "updates": list,
    "specification": dict,
    "status": STATUS,
    "output": {"outputFolder": NOTHING},
}
PAGE: Shape = {"items": list, "itemsPerPage": NUMBER, "next": (TEXT, NOTHING)}
ERROR: Shape = {"statusCode": NUMBER, "why": TEXT, "errorCode": TEXT, "detailedCode": NUMBER}


def ask(account: Lab, method: str, path: str, token: str = API_TOKEN, **given: Any) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Project": PROJECT}
    return requests.request(method, account.url + path, headers=headers, timeout=20, **given).json()


def check(value: Any, shape: Any, where: str = "the answer") -> None:
    """Fails where a key is missing, unknown, or of another type."""
    if isinstance(shape, Mapping):
        assert isinstance(value, dict), where
        assert value.keys() == shape.keys(), where
        for key, part in shape.items():
            check(value[key], part, f"{where}.{key}")
    else:
        assert isinstance(value, shape), f"{where}: {value!r}"
        assert not (isinstance(value, bool) and shape is NUMBER), where


@pytest.mark.parametrize("flags", [{}, {"includeUpdates": "true", "includeApplication": "true"}])
def test_jobs(account: Lab, flags: dict[str, str]) -> None:
    account.run(account.provider(), user_data="x")
    page = ask(account, "GET", "/api/jobs/browse", params={"itemsPerPage": 7, **flags})
    check(page, PAGE)
    assert page["itemsPerPage"] == 7
    for job in page["items"]:
        check(job, JOB)
        assert job["id"].isdecimal()
        assert (job["updates"] != []) <= ("includeUpdates" in flags)
        assert (job["status"]["resolvedApplication"] is not None) == ("includeApplication" in flags)
        for update in job["updates"]:
            check(update, UPDATE)
    (ours,) = [job for job in page["items"] if OPERATION_LABEL in job["specification"]["labels"]]
    values = [*ours["specification"]["parameters"].values(), *ours["specification"]["resources"]]
    assert [set(value) for value in values] == [set(UNION.split())] * len(values)
    assert len(values) == 3
    check(ask(account, "GET", "/api/jobs/retrieve", params={"id": ours["id"]}), JOB)


def test_what_changes_things(account: Lab) -> None:
    made = ask(account, "POST", "/api/jobs", json={"items": [specification(account)]})
    check(made, {"responses": list})
    (response,) = made["responses"]
    check(response, {"id": TEXT})
    for verb in ("terminate", "terminate"):
        assert ask(account, "POST", f"/api/jobs/{verb}", json={"items": [response]}) == {"responses": [{}]}
    for verb, item in (("updateLabels", {**response, "labels": {}}), ("rename", {**response, "newTitle": "a"})):
        assert ask(account, "POST", f"/api/jobs/{verb}", json={"items": [item]}) == {}


def specification(account: Lab) -> dict[str, object]:
    """Return the order that the provider itself would send."""
    provider = account.provider()
    return mapping.specification(order(), provider._client.products()[0], provider._settings)


def test_the_rest(account: Lab) -> None:
    check(ask(account, "POST", "/auth/refresh", token=REFRESH_TOKEN), {"accessToken": TEXT, "csrfToken": TEXT})
    sold = ask(account, "GET", "/api/jobs/retrieveProducts")
    check(sold, {"productsByProvider": {"ucloud": list, "other": list}})
    for item in sold["productsByProvider"]["ucloud"]:
        check(item, {"product": dict, "support": dict, "features": list})
        assert item["support"]["queueStatus"] in ("AVAILABLE", "BUSY", "FULL", None)
        # Go leaves out what is zero or false.
        assert item["product"].get("gpu") != 0
        assert item["support"]["virtualMachine"].get("enabled") in (True, None)
    check(ask(account, "GET", "/api/accounting/v2/browseWallets"), {**PAGE, "next": NOTHING})
    for path, params in (("/api/jobs/retrieve", {"id": "1"}), ("/api/jobs/browse", {"itemsPerPage": "many"})):
        error = ask(account, "GET", path, params=params)
        check(error, ERROR)
        assert error["why"][0].isupper()


def test_the_emulator_and_the_machines_read_the_labels_that_the_provider_writes(account: Lab) -> None:
    """They share no code, so a name that one of them changes alone would only show on a real machine."""
    labels = mapping.labels(order(user_data="told"), account.provider()._settings)
    assert labels[USER_DATA_LABEL] == "told"
    assert USER_DATA_LABEL in ucloud_init_script()
    assert cluster.SERVICE_ADDRESS == mapping.SERVICE_ADDRESS
    script = f"/work/{FOLDER.rpartition('/')[2]}/init.sh"
    assert [labels[name] for name in ("ucloud.dk/init-script", "ucloud.dk/initscript")] == [script, script]
    assert all(key == key.lower() for key in labels), "UCloud puts names into lower case"
    assert re.search(r"ucloud introspect job -json", ucloud_init_script())
