"""Files in sandboxes, moved by a static busybox that runs as the sandbox's own user."""
