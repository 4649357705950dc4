"""Nodes: join tokens, registration, heartbeats, list, drain, removal, and the bundle that makes a machine a node."""

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import FileResponse

from gateway.http.audit import add_facts
from gateway.http.auth import JOIN_TOKEN
from gateway.http.routes.parameters import GatewayParts, NodePath, RemoveNodeQuery, new_router
from gateway.wire.nodes import (
    BundleManifest,
    DrainRequest,
    Heartbeat,
    HeartbeatAnswer,
    JoinToken,
    JoinTokenRequest,
    NodeEnvelope,
    NodeList,
    RegisterAnswer,
    RegisterRequest,
)

router = new_router("nodes")
bundle_router = new_router("bundle")


@router.post("/v1/nodes/join-tokens", status_code=201)
async def make_join_token(body: JoinTokenRequest, request: Request, parts: GatewayParts) -> JoinToken:
    """Make a token with which one instance may register once."""
    add_facts(request.scope, target={"instance": body.instance})
    return await parts.services.nodes.make_join_token(body)


@router.post("/v1/nodes/register", status_code=201)
async def register_node(body: RegisterRequest, request: Request, parts: GatewayParts) -> RegisterAnswer:
    """Register a node; this uses up the join token, and only this answer carries both credentials."""
    add_facts(request.scope, target={"instance": body.instance})
    answer = await parts.services.nodes.register(request.scope["state"][JOIN_TOKEN], body)
    add_facts(request.scope, target={"node_id": answer.node_id})
    return answer


@router.post("/v1/nodes/{node_id}/heartbeat")
async def heartbeat(node_id: NodePath, body: Heartbeat, parts: GatewayParts) -> HeartbeatAnswer:
    """Report the complete inventory of one node; the answer lists what the node must remove."""
    return await parts.services.nodes.heartbeat(node_id, body)


@router.get("/v1/nodes")
async def list_nodes(parts: GatewayParts) -> NodeList:
    """List all nodes that are not gone."""
    return await parts.services.nodes.all()


@router.post("/v1/nodes/{node_id}/drain")
async def drain_node(node_id: NodePath, parts: GatewayParts, body: DrainRequest | None = None) -> NodeEnvelope:
    """Close a node to new sandboxes, or open it again; what runs there keeps running."""
    return await parts.services.nodes.drain(node_id, (body or DrainRequest()).draining)


@router.delete("/v1/nodes/{node_id}")
async def remove_node(
    node_id: NodePath, query: Annotated[RemoveNodeQuery, Query()], parts: GatewayParts
) -> NodeEnvelope:
    """Remove a node that holds nothing, or whose machine no longer exists; what such a node held is lost."""
    return await parts.services.nodes.remove(node_id, machine_gone=query.machine_gone)


@bundle_router.get("/v1/bundle/manifest")
async def bundle_manifest(parts: GatewayParts) -> BundleManifest:
    """Get the list of files that a machine needs to become a node, with their digests."""
    return await parts.services.bundle.manifest()


@bundle_router.get("/v1/bundle/{file_name}", response_class=FileResponse)
async def bundle_file(file_name: str, parts: GatewayParts) -> FileResponse:
    """Get one file of the bundle, such as `SHA256SUMS`, `install.sh` or a wheel, as raw bytes."""
    return FileResponse(await parts.services.bundle.path(file_name), media_type="application/octet-stream")
