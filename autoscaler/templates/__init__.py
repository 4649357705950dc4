"""What new machines are told, as templates; `autoscaler.user_data` fills them in."""
