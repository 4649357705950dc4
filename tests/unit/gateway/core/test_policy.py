"""A policy file is read strictly, tenants override the defaults, and every value knows where it is set."""

import pytest

from gateway.core.policy import BUILT_IN, Policies, Policy, Quota
from gateway.wire.settings import ConfigurationError

FILE = """
[default.policy]
isolations = ["gvisor", "runc"]
capabilities = ["CAP_NET_BIND_SERVICE"]

[default.quota]
sandboxes = 100
cpus = 64

[tenants.acme.policy]
isolations = ["gvisor"]
max_ttl_seconds = 3600

[tenants.acme.quota]
sandboxes = "none"
creates_per_second = 0.5
"""


def test_without_a_file_the_defaults_are_safe() -> None:
    policy, quota = Policies().of("anybody")
    assert policy.isolations == ("gvisor",)
    assert policy.capabilities == ()
    assert policy.root == ("gvisor",)
    assert quota == Quota()
    assert policy.where("isolations") == BUILT_IN


def test_a_tenant_overrides_the_defaults_key_by_key() -> None:
    policies = Policies.parse(FILE, "policy.toml")
    policy, quota = policies.of("acme")
    assert policy.isolations == ("gvisor",)
    assert policy.capabilities == ("NET_BIND_SERVICE",)
    assert (quota.sandboxes, quota.cpus, quota.creates_per_second) == (None, 64, 0.5)
    other, quota = policies.of("other")
    assert other.isolations == ("gvisor", "runc")
    assert (quota.sandboxes, quota.creates_per_second) == (100, None)
    assert policies.tenants == ("acme",)


def test_every_value_knows_where_it_is_set() -> None:
    policy, quota = Policies.parse(FILE, "policy.toml").of("acme")
    assert policy.where("isolations") == "policy.toml [tenants.acme.policy] isolations"
    assert policy.where("capabilities") == "policy.toml [default.policy] capabilities"
    assert policy.where("root") == BUILT_IN
    assert quota.where("sandboxes") == "policy.toml [tenants.acme.quota] sandboxes"
    assert quota.where("cpus") == "policy.toml [default.quota] cpus"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[[", ()),
        ("policy = 1", ("policy",)),
        ("[default]\npolicy = 3", ("default.policy",)),
        ("[default.policy]\nisolation = ['gvisor']", ("[default.policy]", "isolation:")),
        ("[default.policy]\nisolations = 'gvisor'", ("[default.policy]", "isolations:")),
        ("[default.policy]\nisolations = ['docker']", ("[default.policy]", "isolations.0:")),
        ("[default.policy]\ncapabilities = ['net admin']", ("[default.policy]", "capabilities.0:")),
        ("[default.policy]\nimages = ['a b']", ("[default.policy]", "images.0:")),
        ("[default.policy]\nregistries = ['host/path']", ("[default.policy]", "registries.0:")),
        ("[default.policy]\ngpus = true", ("[default.policy]", "gpus:")),
        ("[default.policy]\nmax_cpus = '4'", ("[default.policy]", "max_cpus:")),
        ("[default.policy]\nmax_cpus = nan", ("[default.policy]", "max_cpus:")),
        ("[default.policy]\nmax_ttl_seconds = 0", ("[default.policy]", "max_ttl_seconds:")),
        ("[default.policy]\nmax_ttl_seconds = 5\ndefault_ttl_seconds = 9", ("[default.policy]", "default_ttl_seconds")),
        ("[tenants.acme.quota]\nsandboxes = -1", ("[tenants.acme.quota]", "sandboxes:")),
        ("[tenants.acme.quota]\nspeed = 1", ("[tenants.acme.quota]", "speed:")),
        ("[tenants.acme.limits]\nsandboxes = 1", ("tenants.acme.limits",)),
        ("[tenants.Acme.quota]\nsandboxes = 1", ("tenants.Acme",)),
    ],
)
def test_what_is_wrong_is_named_with_file_table_and_key(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Policies.parse(text, "policy.toml")
    assert str(caught.value).startswith("policy.toml")
    for name in named:
        assert name in str(caught.value)


def test_a_misspelt_key_comes_with_the_likely_one_all_keys_and_the_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Policies.parse("[default.policy]\nmax_cpus = 1\nmax_cpu = 2\n", "policy.toml")
    said = str(caught.value)
    assert "did you mean max_cpus?" in said and "max_ttl_seconds" in said and "(line 3)" in said
    with pytest.raises(ConfigurationError) as caught:
        Policies.parse("[default.quota]\n[tenant.acme.quota]\nsandboxes = 1\n", "policy.toml")
    assert "did you mean tenants?" in str(caught.value) and "(line 2)" in str(caught.value)


def test_a_default_ttl_must_fit_the_maximum_of_the_tenant_too() -> None:
    text = "[default.policy]\ndefault_ttl_seconds = 100\n[tenants.a.policy]\nmax_ttl_seconds = 50"
    with pytest.raises(ConfigurationError, match=r"tenants\.a\.policy"):
        Policies.parse(text, "policy.toml")


def test_without_a_default_the_longest_ttl_is_the_default() -> None:
    assert Policy().ttl_without_one is None
    assert Policy(max_ttl_seconds=60).ttl_without_one == 60
    assert Policy(max_ttl_seconds=60, default_ttl_seconds=30).ttl_without_one == 30
