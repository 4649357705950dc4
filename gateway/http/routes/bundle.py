"""The files with which a machine becomes a node, for who may become one."""

from fastapi.responses import FileResponse

from gateway.http.routes.context import Context, new_router
from gateway.wire.bundle import BundleManifest

router = new_router("bundle")


@router.get("/v1/bundle/manifest")
async def bundle_manifest(edge: Context) -> BundleManifest:
    """What a machine needs to become a node, with the digest of each file."""
    return await edge.services.bundle.manifest()


@router.get("/v1/bundle/{file_name}", response_class=FileResponse)
async def bundle_file(file_name: str, edge: Context) -> FileResponse:
    """Get one file of the bundle, such as `SHA256SUMS`, `install.sh` or a wheel, as raw bytes."""
    return FileResponse(await edge.services.bundle.path(file_name), media_type="application/octet-stream")
