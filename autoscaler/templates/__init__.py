"""What new machines are told, as templates; `autoscaler.bootstrap` fills them in."""
