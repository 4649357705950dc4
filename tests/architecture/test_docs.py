"""The documents agree with the code, and explain every code, state, setting and command."""

import re
import textwrap
from pathlib import Path

import pytest
from typer.main import get_command

from docs import settings
from gateway.core.policy import Policies
from gateway.core.policy_check import check
from gateway.wire.errors import CODE_RULES, ErrorCode
from gateway.wire.sandboxes import SandboxSpec
from gateway.wire.states import SANDBOX_TRANSITIONS, DeathReason, NodeState, SandboxState
from sandboxes.app import COMMANDS, application

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "sdk" / "README.md", ROOT / "terraform" / "README.md"])


def page(name: str) -> str:
    return (DOCS / name).read_text()


def test_the_example_in_the_readme_is_the_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert (ROOT / "examples" / "hello.py").read_text() in blocks


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_code_is_explained_with_its_status(code: ErrorCode) -> None:
    row = re.search(rf"^\|\s*`{code}`\s*\|\s*(\d+)\s*\|", page("api.md"), flags=re.MULTILINE)
    assert row, f"docs/api.md has no row for {code}"
    assert int(row.group(1)) == CODE_RULES[code].status


@pytest.mark.parametrize("word", [*SandboxState, *DeathReason, *NodeState])
def test_every_state_and_reason_is_named(word: str) -> None:
    assert f"`{word}`" in page("api.md") + page("architecture.md") + page("operations.md")


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    assert settings.rendered(page("operations.md")) == page("operations.md"), "run: make docs"


def test_every_command_is_explained() -> None:
    text = page("operations.md")
    listed = [*COMMANDS, *getattr(get_command(application()), "commands", {})]
    missing = sorted({name for name in listed if f"sandboxes {name}" not in text})
    assert not missing, f"docs/operations.md says nothing about {missing}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
    broken = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert not broken


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_into_a_page_meets_a_heading(path: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]*\.md|)#([^)\s]+)\)", path.read_text())
    broken = [
        f"{page}#{anchor}" for page, anchor in targets if anchor not in anchors(path.parent / page if page else path)
    ]
    assert not broken


def test_the_threat_model_is_there_and_linked() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for part in (
        "Report a vulnerability",
        "Who is trusted",
        "The boundaries",
        "runc",
        "Side channels",
        "Secrets",
        "Supply chain",
    ):
        assert part in text, part
    for named in ("operator", "gateway", "node agent", "client", "sandbox", "image", "registry", "tenant"):
        assert re.search(rf"^\|[^|]*{named}", text, flags=re.MULTILINE), f"the threat model says nothing about {named}"
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text()
    assert "](../SECURITY.md)" in page("README.md")


def test_the_policy_of_the_page_about_tenants_is_one() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", page("tenants.md"), flags=re.DOTALL)
    policies = Policies.parse(textwrap.dedent(text), "docs/tenants.md")
    policy, quota = policies.of("vision")
    assert (policy.gpus, policy.max_cpus, quota.gpus, quota.sandboxes) == (2, 4, 4, 20)
    (spec,) = re.findall(r"echo '(.*)' \|", page("tenants.md"))
    assert [found.field for found in check(SandboxSpec.model_validate_json(spec), policy)] == ["gpus"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_named_file_is_there(path: Path) -> None:
    if path.name == "CHANGELOG.md":
        return  # it describes the past
    folders = "autoscaler|gateway|node_agent|providers|sandboxes|simulator|sdk|setup|terraform|docs"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", path.read_text())
    assert not sorted({name for name in named if not (ROOT / name).exists()})


def test_the_table_of_states_is_the_one_in_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]*\| (`[^|]*)\|$", page("architecture.md"), flags=re.MULTILINE)
    documented = {state: set(re.findall(r"`(\w+)`", after)) for state, after in rows}
    assert documented == {
        state.value: {after.value for after in allowed} for state, allowed in SANDBOX_TRANSITIONS.items()
    }
