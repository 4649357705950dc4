"""How a machine becomes a node: join tokens and registration, as transactions."""

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from sqlmodel import Session

from gateway.core import node_health
from gateway.core.model import JoinGrant, Node, Token
from gateway.errors import ApiError
from gateway.store import nodes, tokens
from gateway.wire.errors import ErrorCode, FieldError
from gateway.wire.nodes import RegisterRequest
from gateway.wire.states import NodeState
from gateway.wire.tokens import TokenScope


@dataclass(frozen=True)
class JoinRequest:
    """A registration as it came in, and the names and hashes that the node will get."""

    request: RegisterRequest
    join_sha256: str
    node_id: str
    token_id: str
    credential_sha256: str
    now: datetime


def register(session: Session, joining: JoinRequest) -> Node:
    """Write the node and its credential, and mark the join token as used.

    An instance is one node: when it registers again it keeps its node's id, and its older credentials end.

    Raises:
        ApiError: ``UNAUTHORIZED``, ``FORBIDDEN``, ``TOKEN_USED``.
    """
    request, now = joining.request, joining.now
    grant = valid_grant(session, joining.join_sha256, now)
    if grant.instance != request.instance:
        raise ApiError(
            ErrorCode.FORBIDDEN,
            f"the join token was made for another instance than {request.instance}; ask for one of its own",
        )
    known = nodes.of_instance(session, request.instance)
    fresh = Node(
        id=joining.node_id,
        instance=request.instance,
        pool=grant.pool,
        state=NodeState.READY,
        node_url=request.node_url.rstrip("/"),
        agent_version=request.agent_version,
        total=request.total,
        runtimes=tuple(request.runtimes),
        registered_at=now,
        operation_id=grant.operation_id,
        stages=request.stages,
        role=grant.role,
    )
    if known is None:
        node = nodes.add(session, fresh)
    else:
        node = nodes.save(session, known, node_health.registered_again(known, fresh))
    tokens.revoke_of_node(session, node.id, now)
    credential = Token(joining.token_id, f"node {node.id}", TokenScope.NODE.value, now, node_id=node.id)
    tokens.add(session, credential, joining.credential_sha256)
    nodes.use_grant(session, grant, node.id, now)
    return node


def check_url(node_url: str) -> None:
    """Refuse what is not an absolute http(s) origin.

    Raises:
        ApiError: ``INVALID_REQUEST``.
    """
    try:
        parts = urlsplit(node_url)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.path in {"", "/"}
        good = good and not (parts.query or parts.fragment or parts.username) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        problem = "must be an absolute http(s) origin, e.g. http://10.0.0.5:8091"
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"node_url: {problem}",
            fields=[FieldError(field="node_url", problem=problem)],
        )


def valid_grant(session: Session, join_sha256: str, now: datetime) -> JoinGrant:
    """Return what the join token with this hash allows, if it still allows anything.

    Raises:
        ApiError: ``UNAUTHORIZED`` (unknown, expired, or of an older order of its instance), ``TOKEN_USED``.
    """
    grant = nodes.grant_of(session, join_sha256)
    if grant is None:
        raise ApiError(ErrorCode.UNAUTHORIZED, "the join token is not known here; ask for a new one")
    if grant.used_at is not None and not _answer_was_lost(session, grant):
        raise ApiError(
            ErrorCode.TOKEN_USED,
            f"the join token of instance {grant.instance} was used at {grant.used_at.isoformat()}; ask for a new one",
        )
    if grant.expires_at <= now:
        raise ApiError(
            ErrorCode.UNAUTHORIZED,
            f"the join token of instance {grant.instance} expired at {grant.expires_at.isoformat()}; ask for a new one",
        )
    if nodes.newer_operation(session, grant):
        raise ApiError(
            ErrorCode.UNAUTHORIZED,
            f"instance {grant.instance} was ordered again since this join token was made; only the new one may join",
        )
    return grant


def _answer_was_lost(session: Session, grant: JoinGrant) -> bool:
    """Return whether the node that used the token never reported: it got no credential, and may ask once more."""
    node = None if grant.node_id is None else nodes.get(session, grant.node_id)
    return node is not None and node.beats == 0 and node.state is not NodeState.GONE
