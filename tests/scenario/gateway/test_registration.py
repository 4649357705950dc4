"""Join tokens belong to one order of one instance; older incarnations are refused; boots are measured."""

from datetime import timedelta

import pytest

from gateway.errors import ApiError
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import BootStages, JoinTokenRequest, NodeRecord
from gateway.wire.states import SandboxState
from gateway.wire.tokens import TokenScope
from tests.scenario.gateway.world import (
    FakeNode,
    World,
    registration,
    spec,
)


async def token(world: World, operation: str | None, instance: str = "vm-1", **fields: object) -> str:
    """Make a join token, some time after the one before."""
    world.manual_clock.advance(1)
    request = JoinTokenRequest.model_validate(
        {"instance": instance, "pool": "cpu", "operation_id": operation, **fields}
    )
    return (await world.services.nodes.make_join_token(request)).token


async def joined(world: World, secret: str, **fields: object) -> tuple[FakeNode, str]:
    """Let a machine register and report once; return its node and its credential."""
    node = FakeNode("vm-1", boot_id=secret)
    answer = await world.services.nodes.register(secret, registration(node).model_copy(update=fields))
    node.node_id = answer.node_id
    world.fleet.nodes[node.node_id] = node
    await world.beat(node)
    return node, answer.credential


async def refusal(world: World, secret: str, instance: str = "vm-1") -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        await world.services.nodes.register(secret, registration(FakeNode(instance)))
    return caught.value.code


async def record(world: World) -> NodeRecord:
    (node,) = (await world.services.nodes.all()).nodes
    return node


async def test_a_node_carries_the_operation_of_its_join_token(here: World) -> None:
    await joined(here, await token(here, "op-1"))
    assert (await record(here)).operation_id == "op-1"


async def test_a_node_has_the_role_of_its_join_token(here: World) -> None:
    await joined(here, await token(here, "op-1", role="builder"))
    assert (await record(here)).role == "builder"
    await joined(here, await token(here, "op-2", role="both"))
    assert (await record(here)).role == "both"


async def test_only_the_newest_order_of_an_instance_may_join(here: World) -> None:
    old, new = await token(here, "op-1"), await token(here, "op-2")
    assert await refusal(here, old) is ErrorCode.UNAUTHORIZED
    await joined(here, new)
    assert (await record(here)).operation_id == "op-2"


async def test_a_token_without_operation_is_older_than_every_order(here: World) -> None:
    free = await token(here, None)
    await token(here, "op-1")
    assert await refusal(here, free) is ErrorCode.UNAUTHORIZED


async def test_each_attempt_of_one_order_may_bring_a_token(here: World) -> None:
    first = await token(here, "op-1")
    await token(here, "op-1")
    await joined(here, first)


async def test_the_second_machine_of_one_order_is_refused(here: World) -> None:
    """A provider that made two machines of one order gave both the same token."""
    secret = await token(here, "op-1")
    await joined(here, secret)
    assert await refusal(here, secret) is ErrorCode.TOKEN_USED


async def test_a_token_of_another_instance_is_refused(here: World) -> None:
    assert await refusal(here, await token(here, "op-1"), "vm-2") is ErrorCode.FORBIDDEN


async def test_a_token_expires(here: World) -> None:
    secret = await token(here, "op-1", ttl_seconds=60)
    here.manual_clock.advance(60)
    assert await refusal(here, secret) is ErrorCode.UNAUTHORIZED


async def test_a_newer_incarnation_revokes_the_older_ones_credential_and_ends_its_sandboxes(here: World) -> None:
    old, old_credential = await joined(here, await token(here, "op-1"))
    await here.services.sandboxes.create(spec("a"))
    new, new_credential = await joined(here, await token(here, "op-2"))
    assert new.node_id == old.node_id
    with pytest.raises(ApiError) as caught:
        await here.services.tokens.verify(old_credential)
    assert caught.value.code is ErrorCode.UNAUTHORIZED
    assert (await here.services.tokens.verify(new_credential)).node_id == new.node_id
    await here.beat(new)
    assert await here.state("a") is SandboxState.LOST


async def test_stages_are_kept_and_end_with_the_first_heartbeat(here: World) -> None:
    secret = await token(here, "op-1")
    node = FakeNode("vm-1")
    measured = BootStages(cloud_init=9.5, engines=31, bundle=40.25, agent=41, registered=42.5)
    answer = await here.services.nodes.register(secret, registration(node).model_copy(update={"stages": measured}))
    assert (await record(here)).stages == measured
    node.node_id = answer.node_id
    here.fleet.nodes[node.node_id] = node
    here.manual_clock.advance(1.5)
    await here.beat(node)
    here.manual_clock.advance(100)
    await here.beat(node)
    assert (await record(here)).stages == measured.model_copy(update={"heartbeat": 44.0})


async def test_a_node_that_registers_again_keeps_its_boot_stages(here: World) -> None:
    first = BootStages(agent=3, registered=4)
    await joined(here, await token(here, "op-1"), stages=first)
    again = BootStages(agent=90_000, registered=90_001)
    await joined(here, await token(here, "op-1"), stages=again)
    stages = (await record(here)).stages
    assert stages is not None and (stages.agent, stages.registered) == (3, 4)


async def test_an_older_order_cannot_join_after_the_purge(here: World) -> None:
    """Tokens are purged a day after they expired; until then an older one could still be used."""
    old = await token(here, "op-1", ttl_seconds=86_400)
    await token(here, "op-2", ttl_seconds=1)
    here.manual_clock.advance(timedelta(hours=20).total_seconds())
    await here.services.internals.reaper.purge()
    assert await refusal(here, old) is ErrorCode.UNAUTHORIZED


async def test_a_join_token_registers_once(here: World) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    node = FakeNode("vm-1")
    answer = await here.services.nodes.register(token.token, registration(node))
    principal = await here.services.tokens.verify(answer.credential)
    assert (principal.scope, principal.node_id) == (TokenScope.NODE, answer.node_id)
    assert answer.control_token == (await here.services.nodes.address(answer.node_id)).control_token
    node.node_id = answer.node_id
    here.fleet.nodes[node.node_id] = node
    await here.beat(node)
    with pytest.raises(ApiError) as caught:
        await here.services.nodes.register(token.token, registration(node))
    assert caught.value.code is ErrorCode.TOKEN_USED


async def test_an_instance_that_lost_the_answer_may_register_again(here: World) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    lost = await here.services.nodes.register(token.token, registration(FakeNode("vm-1")))
    again = await here.services.nodes.register(token.token, registration(FakeNode("vm-1")))
    assert again.node_id == lost.node_id
    with pytest.raises(ApiError):
        await here.services.tokens.verify(lost.credential)
    assert (await here.services.tokens.verify(again.credential)).node_id == again.node_id


@pytest.mark.parametrize("seconds", [3600, 5000])
async def test_a_join_token_expires(here: World, seconds: float) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    here.manual_clock.advance(seconds)
    with pytest.raises(ApiError) as caught:
        await here.services.nodes.register(token.token, registration(FakeNode("vm-1")))
    assert caught.value.code is ErrorCode.UNAUTHORIZED


async def test_a_join_token_is_for_its_instance(here: World) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    with pytest.raises(ApiError) as caught:
        await here.services.nodes.register(token.token, registration(FakeNode("vm-2")))
    assert caught.value.code is ErrorCode.FORBIDDEN


@pytest.mark.parametrize("url", ["10.0.0.1:80", "ftp://x", "http://", "http://x/path", "http://u@x", "http://x:99999"])
async def test_a_node_url_must_be_an_absolute_origin(here: World, url: str) -> None:
    token = await here.services.nodes.make_join_token(JoinTokenRequest(instance="vm-1", pool="cpu"))
    request = registration(FakeNode("vm-1")).model_copy(update={"node_url": url})
    with pytest.raises(ApiError) as caught:
        await here.services.nodes.register(token.token, request)
    assert [problem.field for problem in caught.value.details["fields"]] == ["node_url"]
