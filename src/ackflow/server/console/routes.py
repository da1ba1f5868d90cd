"""All routes that the dashboard uses."""

from . import actions, admin, messages, queues, work

ROUTES = (*queues.ROUTES, *messages.ROUTES, *actions.ROUTES, *admin.ROUTES, *work.ROUTES)
