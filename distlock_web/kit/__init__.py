"""What a store with a server builds on::

    outage         whether the server answers, and what is done once it does again
    pool           its connections, for threads
    blocking_port  the ports of a driver that blocks
    wakeups        where the callers of this process sleep that wait for a lock

Only stores import it.
"""
