"""Administration: options, pauses, seeking, purging and deleting."""
