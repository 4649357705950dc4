from uuid import uuid4
from ucloud_sandboxes_sdk import Image, SandboxApiError, SandboxClient, SandboxSpec

try:
    client = SandboxClient.from_env()    # UCLOUD_SANDBOX_URL, UCLOUD_SANDBOX_API_TOKEN
    sandbox = client.create_sandbox(
        SandboxSpec(
            id=f"example-{uuid4().hex}",
            image=Image.from_registry("python:3.12-slim"),
            command=["sleep", "300"],
            cpus=1, memory_mb=2048, disk_mb=10240, ttl_seconds=600,
        )
    )
    try:
        result = sandbox.exec(["python", "-c", "print('hello')"], timeout_seconds=30)
        print(result.stdout)
    finally:
        sandbox.delete()
except (SandboxApiError, ValueError) as error:
    raise SystemExit(f"error: {error}") from None
