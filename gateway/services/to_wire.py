"""Domain values as wire models, and the cursor of a page."""

import base64
import binascii
import json
import re
from datetime import UTC, datetime

from gateway.core.model import NodeLoad, PreparedBatch, Sandbox, Token
from gateway.core.placement import NoRoom
from gateway.errors import ApiError
from gateway.wire.capacity import PreparedBuilders, PreparedCapacity
from gateway.wire.errors import ErrorCode
from gateway.wire.nodes import NodeRecord
from gateway.wire.sandboxes import RecordedSpec, SandboxRecord
from gateway.wire.tenants import QUALIFIED_PATTERN
from gateway.wire.tokens import TokenRecord, TokenScope


def sandbox_record(sandbox: Sandbox, waits: NoRoom | None = None) -> SandboxRecord:
    """Return the sandbox as operators see it.

    Args:
        sandbox: as it is stored.
        waits: why it waits, where that is known.
    """
    return SandboxRecord(
        id=sandbox.id,
        tenant=sandbox.tenant,
        generation=sandbox.generation,
        image=sandbox.spec.image,
        image_digest=sandbox.image_digest,
        labels=sandbox.spec.labels,
        spec=RecordedSpec.of(sandbox.spec, sandbox.id),
        spec_hash=sandbox.spec_hash,
        state=sandbox.state,
        reason=sandbox.reason,
        waiting=None if waits is None else waits.why,
        detail=sandbox.detail if waits is None else waits.sentence,
        exit_code=sandbox.exit_code,
        runtime=sandbox.runtime,
        isolation=sandbox.isolation,
        node_id=sandbox.node_id,
        operation_id=sandbox.operation_id,
        created_at=sandbox.created_at,
        updated_at=sandbox.updated_at,
        started_at=sandbox.started_at,
        ended_at=sandbox.ended_at,
        expires_at=sandbox.expires_at,
    )


def node_record(load: NodeLoad) -> NodeRecord:
    """Return the node as operators see it."""
    node = load.node
    return NodeRecord(
        id=node.id,
        instance=node.instance,
        pool=node.pool,
        role=node.role,
        state=node.state,
        node_url=node.node_url,
        agent_version=node.agent_version,
        total=node.total,
        reserved=load.reserved,
        runtimes=list(node.runtimes),
        pressure=node.pressure,
        sandboxes=load.sandboxes,
        registered_at=node.registered_at,
        heartbeat_at=node.heartbeat_at,
        idle_since=load.idle_since,
        operation_id=node.operation_id,
        stages=node.stages,
    )


def prepared_capacity(prepared: PreparedBatch) -> PreparedCapacity:
    """Return prepared sandboxes as operators see them."""
    return PreparedCapacity(
        prepare_id=prepared.id,
        tenant=prepared.tenant,
        resources=prepared.shape,
        count=prepared.count,
        total_resources=prepared.total,
        runtime=prepared.runtime,
        isolation=prepared.isolation,
        image=prepared.image,
        created_at=prepared.created_at,
        updated_at=prepared.updated_at,
        expires_at=prepared.expires_at,
    )


def prepared_builders(prepared: PreparedBatch) -> PreparedBuilders:
    """Return prepared builders as operators see them."""
    return PreparedBuilders(
        prepare_id=prepared.id,
        tenant=prepared.tenant,
        count=prepared.count,
        created_at=prepared.created_at,
        updated_at=prepared.updated_at,
        expires_at=prepared.expires_at,
    )


def token_record(token: Token) -> TokenRecord:
    """Return the token without its secret."""
    return TokenRecord(
        id=token.id,
        name=token.name,
        scope=TokenScope(token.scope),
        tenant=token.tenant,
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
    )


def cursor_after(sandbox: Sandbox) -> str:
    """Return the cursor of the page after the one that ends with this sandbox."""
    return base64.urlsafe_b64encode(json.dumps([sandbox.created_at.isoformat(), sandbox.id]).encode()).decode()


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """Return the creation time and id after which the next page begins.

    Raises:
        ApiError: ``INVALID_REQUEST`` when it is not one of ours.
    """
    try:
        moment, sandbox_id = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        after = datetime.fromisoformat(moment)
        if after.tzinfo is None or not re.fullmatch(QUALIFIED_PATTERN, sandbox_id):
            raise ValueError("not a cursor")
        after = after.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError) as error:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "cursor: pass the next_cursor of the page before, unchanged"
        ) from error
    return after, sandbox_id
