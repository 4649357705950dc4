"""SDU UCloud: virtual machines that are jobs of a project."""
