"""All routes that the dashboard uses."""

from . import actions, admin, messages, queues

ROUTES = (*queues.ROUTES, *messages.ROUTES, *actions.ROUTES, *admin.ROUTES)
