"""How long a test waits for what must happen soon."""

BUSY_S = 10.0
"""What a machine with other work may add to a time limit. Less than any default timeout (30 s), so
that a limit which is not kept at all is noticed."""
EVENT_S = 60.0
"""How long an event may take that is certain to come."""
