"""The agent on every node: runs sandboxes on real engines and reports them to the gateway."""
