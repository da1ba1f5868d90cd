"""Queen's HTTP routes: `routes` moves messages, `admin_routes` manages queues and groups."""
