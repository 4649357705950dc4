"""Nodes as they register, report and leave."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlmodel import Session

from gateway.core import inventory, node_health
from gateway.core.inventory import OrphanRemoval, RowUpdate
from gateway.core.model import JoinGrant, Node, NodeAddress, Sandbox
from gateway.errors import ApiError
from gateway.services.controllers import ServiceContext
from gateway.services.expiry import Reaper
from gateway.services.node_monitor import NodeMonitor, give_up
from gateway.services.registration import JoinRequest, check_url, register
from gateway.services.to_wire import node_record
from gateway.services.tokens import TokenService, new_secret, sha256_of
from gateway.services.unit_of_work import Written
from gateway.services.usage import oldest_kept
from gateway.settings import GatewaySettings
from gateway.store import nodes, sandboxes, tokens, usage
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import (
    Heartbeat,
    HeartbeatAnswer,
    JoinToken,
    JoinTokenRequest,
    NodeEnvelope,
    NodeList,
    RegisterAnswer,
    RegisterRequest,
    Removal,
)
from gateway.wire.states import LIVE, NodeState


@dataclass(frozen=True)
class _Report:
    """A heartbeat once it is in the store."""

    before: Node
    after: Node
    rows: tuple[Sandbox, ...]
    """The node's sandboxes as they were before."""
    decisions: tuple[RowUpdate | OrphanRemoval, ...]
    news: bool


class NodeService:
    """Registration, heartbeats, drain and removal of nodes."""

    def __init__(
        self,
        context: ServiceContext,
        node_monitor: NodeMonitor,
        reaper: Reaper,
        token_service: TokenService,
        settings: GatewaySettings,
    ) -> None:
        self._context = context
        self._node_monitor = node_monitor
        self._reaper = reaper
        self._tokens = token_service
        self._settings = settings
        self._seen: dict[str, Mapping[str, int]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def make_join_token(self, request: JoinTokenRequest) -> JoinToken:
        """Return a secret with which one instance may register once."""
        now = self._context.clock.now()
        grant = JoinGrant(
            self._context.new_id(),
            request.instance,
            request.pool,
            now + timedelta(seconds=request.ttl_seconds),
            operation_id=request.operation_id,
            role=request.role,
        )
        secret = new_secret("j")
        await self._context.uow.db.write(lambda session: nodes.add_grant(session, grant, sha256_of(secret), now))
        return JoinToken(token=secret, instance=grant.instance, expires_at=grant.expires_at)

    async def register(self, join_token: str, request: RegisterRequest) -> RegisterAnswer:
        """Register a machine as a node, and return both of the node's credentials.

        Raises:
            ApiError: ``UNAUTHORIZED`` (unknown or expired token), ``FORBIDDEN`` (made for another instance),
                ``TOKEN_USED``, ``INVALID_REQUEST`` (the node's URL).
        """
        check_url(request.node_url)
        credential = new_secret("n")
        joining = JoinRequest(
            request=request,
            join_sha256=sha256_of(join_token),
            node_id=f"node-{self._context.new_id()}",
            token_id=self._context.new_id(),
            credential_sha256=sha256_of(credential),
            now=self._context.clock.now(),
        )
        node = await self._context.uow.db.write(lambda session: register(session, joining))
        self._tokens.forget()
        self._context.routes.drop_node(node.id)
        self._node_monitor.heartbeat(node)
        return RegisterAnswer(
            node_id=node.id,
            credential=credential,
            control_token=self._context.directory.control_token(node.id),
            heartbeat_seconds=self._settings.heartbeat_interval,
        )

    async def heartbeat(self, node_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        """Take in a node's report; return what the node shall remove.

        Raises:
            ApiError: ``NODE_NOT_FOUND``: it was removed and must register again.
        """
        check_url(beat.node_url)
        return await self._context.background.finish(self._heartbeat(node_id, beat), f"heartbeat-{node_id}")

    async def all(self) -> NodeList:
        """Return all nodes that are not gone, oldest first."""
        loads = await self._context.uow.db.read(lambda session: nodes.with_load(session, nodes.present(session)))
        return NodeList(nodes=[node_record(load) for load in loads])

    async def drain(self, node_id: str, draining: bool) -> NodeEnvelope:
        """Close or open a node for new sandboxes.

        Raises:
            ApiError: ``NODE_NOT_FOUND``.
        """

        def fn(session: Session) -> NodeEnvelope:
            node = _get(session, node_id)
            return _envelope(session, nodes.save(session, node, node_health.drained(node, draining)))

        envelope = await self._context.uow.db.write(fn)
        self._context.scheduler.wake()
        return envelope

    async def remove(self, node_id: str, *, machine_gone: bool = False) -> NodeEnvelope:
        """Remove a node and its credential; sandboxes that it held are lost.

        Args:
            node_id: the node.
            machine_gone: the cloud has proved that its machine is gone. A node whose heartbeats come all the same is
                kept: then the cloud, or whoever changed labels there, is not to be believed.

        Raises:
            ApiError: ``NODE_NOT_FOUND``; ``CONFLICT`` while it holds live sandboxes and is neither lost nor, with its
                machine gone, unreachable.
        """
        envelope = await self._context.uow.commit(
            lambda session: self._remove(session, node_id, machine_gone), reserved=True
        )
        self._tokens.forget()
        self._context.routes.drop_node(node_id)
        self._node_monitor.forget(node_id)
        self._seen.pop(node_id, None)
        self._locks.pop(node_id, None)
        self._context.scheduler.wake()
        return envelope

    async def address(self, node_id: str) -> NodeAddress:
        """Return where a node is reached.

        Raises:
            ApiError: ``NODE_NOT_FOUND``.
        """
        address = await self._context.directory.address(node_id)
        if address is None:
            raise _not_found(node_id)
        return address

    # -- heartbeat ----------------------------------------------------------------------------------------------------

    async def _heartbeat(self, node_id: str, beat: Heartbeat) -> HeartbeatAnswer:
        async with self._locks.setdefault(node_id, asyncio.Lock()):
            seen = self._seen.get(node_id, {})
            try:
                saved = await self._context.uow.commit(lambda session: self._save(session, node_id, beat, seen))
            except ApiError as error:
                if error.code is not ErrorCode.NODE_NOT_FOUND:
                    self._node_monitor.unsaved_heartbeat(error)
                raise
            self._node_monitor.heartbeat(saved.after)
            if saved.before.node_url != saved.after.node_url:
                self._context.routes.drop_node(node_id)
            if saved.news:
                self._seen[node_id] = inventory.versions_after(saved.rows, saved.decisions)
                self._context.scheduler.forgive(node_id)
                if node_health.capacity_changed(saved.before, saved.after):
                    self._context.scheduler.wake()
                await self._reaper.end_idle(saved.rows, beat.inventory)
        orphans = [decision for decision in saved.decisions if isinstance(decision, OrphanRemoval)]
        return HeartbeatAnswer(
            remove=[Removal(sandbox_id=orphan.sandbox_id, generation=orphan.generation) for orphan in orphans],
            meters_taken=[report.meter_id for report in beat.usage if report.final and saved.news],
            draining=saved.after.draining,
            heartbeat_seconds=self._settings.heartbeat_interval,
        )

    def _save(self, session: Session, node_id: str, beat: Heartbeat, seen: Mapping[str, int]) -> Written[_Report]:
        now = self._context.clock.now()
        node = _get(session, node_id)
        if not node_health.is_news(node, beat):
            return Written(_Report(node, node, (), (), news=False))
        after = nodes.save(session, node, node_health.after_heartbeat(node, beat, now))
        usage.book(session, beat.usage, now, oldest_kept(self._settings, now))
        rows = tuple(sandboxes.on_node(session, node_id))
        decisions = tuple(inventory.reconcile(rows, beat.inventory, seen, node_id, now))
        changed = [sandboxes.save(session, d.before, d.after) for d in decisions if isinstance(d, RowUpdate)]
        return Written(_Report(node, after, rows, decisions, news=True), tuple(changed))

    # -- removal ------------------------------------------------------------------------------------------------------

    def _remove(self, session: Session, node_id: str, machine_gone: bool) -> Written[NodeEnvelope]:
        node = _get(session, node_id)
        live = [row.id for row in sandboxes.on_node(session, node_id) if row.state in LIVE]
        given_up = {NodeState.LOST, NodeState.UNREACHABLE} if machine_gone else {NodeState.LOST}
        if live and node.state not in given_up:
            cure = "its heartbeats still come" if machine_gone else "drain it and delete them first"
            raise ApiError(
                ErrorCode.CONFLICT,
                f"node {node_id} holds {len(live)} live sandboxes, e.g. {live[0]}; {cure}",
                retryable=False,
            )
        changed = give_up(session, node_id, self._context.new_id, self._context.clock)
        gone = nodes.save(session, node, node_health.in_state(node, NodeState.GONE))
        tokens.revoke_of_node(session, node_id, self._context.clock.now())
        return Written(_envelope(session, gone), tuple(changed))


def _get(session: Session, node_id: str) -> Node:
    node = nodes.get(session, node_id)
    if node is None or node.state is NodeState.GONE:
        raise _not_found(node_id)
    return node


def _envelope(session: Session, node: Node) -> NodeEnvelope:
    return NodeEnvelope(node=node_record(nodes.with_load(session, [node])[0]))


def _not_found(node_id: str) -> ApiError:
    return ApiError(ErrorCode.NODE_NOT_FOUND, f"there is no node {node_id}; it may register with a new join token")
