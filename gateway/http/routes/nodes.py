"""Nodes: join tokens, registration, heartbeats, list, drain and removal."""

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import FileResponse

from gateway.http.auth import JOIN_TOKEN
from gateway.http.routes.parameters import Context, NodePath, RemoveNodeQuery, new_router
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


@router.post("/v1/nodes/join-tokens", status_code=201)
async def make_join_token(body: JoinTokenRequest, edge: Context) -> JoinToken:
    """Make a token with which one instance may register once."""
    return await edge.services.nodes.make_join_token(body)


@router.post("/v1/nodes/register", status_code=201)
async def register_node(body: RegisterRequest, request: Request, edge: Context) -> RegisterAnswer:
    """Introduce a node; the join token is used up, and both credentials are told once."""
    return await edge.services.nodes.register(request.scope["state"][JOIN_TOKEN], body)


@router.post("/v1/nodes/{node_id}/heartbeat")
async def heartbeat(node_id: NodePath, body: Heartbeat, edge: Context) -> HeartbeatAnswer:
    """Tell the complete truth of one node; the answer says what it shall remove."""
    return await edge.services.nodes.heartbeat(node_id, body)


@router.get("/v1/nodes")
async def list_nodes(edge: Context) -> NodeList:
    """List all nodes that are not gone."""
    return await edge.services.nodes.all()


@router.post("/v1/nodes/{node_id}/drain")
async def drain_node(node_id: NodePath, edge: Context, body: DrainRequest | None = None) -> NodeEnvelope:
    """Close a node for new sandboxes, or open it again; what runs there goes on."""
    return await edge.services.nodes.drain(node_id, (body or DrainRequest()).draining)


@router.delete("/v1/nodes/{node_id}")
async def remove_node(node_id: NodePath, query: Annotated[RemoveNodeQuery, Query()], edge: Context) -> NodeEnvelope:
    """Forget a node that holds nothing, or whose machine is no more; what it held then is lost."""
    return await edge.services.nodes.remove(node_id, machine_gone=query.machine_gone)


router = new_router("bundle")


@router.get("/v1/bundle/manifest")
async def bundle_manifest(edge: Context) -> BundleManifest:
    """What a machine needs to become a node, with the digest of each file."""
    return await edge.services.bundle.manifest()


@router.get("/v1/bundle/{file_name}", response_class=FileResponse)
async def bundle_file(file_name: str, edge: Context) -> FileResponse:
    """Get one file of the bundle, such as `SHA256SUMS`, `install.sh` or a wheel, as raw bytes."""
    return FileResponse(await edge.services.bundle.path(file_name), media_type="application/octet-stream")
