"""The lock itself. Reading order, from what a caller writes to what that is made of::

    lock              lock(...), Lock, attach: the entry points
    options           which options there are; options and the store's settings -> a Spec
    lease             Lease, what the caller holds: a view of a scope
    engine            the algorithm: acquire, re-enter, wait, release, extend. Begin here to learn how it works
    release           releasing, to completion, whatever comes meanwhile
    watchdog          one thread for each store renews and tells of losses; watched_hold: what it looks after
    chain             which scopes the running code is inside of
    scope             one block under its locks; hold: one name held; reentry: the turns inside a hold

    transfer          detach and attach, the Ticket between them
    request_scope     the request of a task or a command: an id, and no lock around it
    fencing           fences on their way to where they are checked
    decorator         distributed_lockable; key_templates: its key=; naming: what a function is called
    hooks             what a framework or a database library offers: Integration
    events            what happens, in one stream, for those who listen; background: how they are called;
                      live_leases, log_fields: what they need
    refusal           a block that does not begin; places: which line of code takes a lock
    open_transactions the warning about a transaction that ends after its lock

No import goes in a circle, and nothing here imports a framework or a store.
"""
