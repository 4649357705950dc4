"""SDU UCloud: virtual machines that are jobs of a project."""

from providers.ucloud.provider import UCloudProvider

__all__ = ["UCloudProvider"]
