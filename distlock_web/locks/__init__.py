"""The lock itself. Reading order, from what a caller writes to what that is made of::

    lock              lock(...), Lock, attach: the entry points
    options           which options there are; options and the store's settings -> a Spec
    engine            the algorithm: acquire, re-enter, wait. Begin here to learn how it works
    ending            how a scope ends: released, lost, handed over, never begun, interrupted
    lease             Lease, what the caller holds: a view of a scope
    scope             one block under its locks
    hold              one name held: its states, its deadline, the gate to its re-entry
    chain             which scopes the running code is inside of
    watchdog          leases are extended: by hand, and by one thread for each server, which tells of losses as well

    decorator         distributed_lockable; key_templates: its key=, and what a function is called
    once              once, a decorated function whose end leaves a record; plain_values: what it keeps of values
    leader            leader, of many processes the one that leads: a thread over lock(...)
    hooks             what a framework or a database library offers: Integration
    transfer          the ticket between detach and attach
    fencing           fences on their way to where they are checked
    request_context   the request of a task or a command: an id, and no lock around it
    call_site         which line of code makes a lock; the warning about a transaction that is open there
    events            what happens, in one stream, for those who listen; live_leases: what they keep of each lease

No import goes in a circle, and nothing here imports a framework or a store.
"""
