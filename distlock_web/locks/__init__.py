"""The lock itself. Reading order, from what a caller writes to what that is made of::

    lock              lock(...), Lock, attach: the entry points
    options           which options there are; options and the store's settings -> a Spec
    engine            the algorithm: take, wait, all names or none. Begin here to learn how it works
    ending            how a scope ends: released, lost, never begun, interrupted
    completion        what was begun is done, whatever comes meanwhile
    lease             Lease, what the caller holds: a view of a scope
    scope             one block under its locks
    hold              one name held: its states and its deadline
    watchdog          leases are extended: by hand, and by one thread for each server, which tells of losses as well

The rooms, each of one feature that the way of a lock passes by::

    reentry           chain: which scopes the running code is inside of; entering: a lock that they hold is entered
                      again; gate: in which its siblings take turns
    handover          detach, the ticket, and who takes on with it
    commit            what until="commit" does with a lease, and the warning of another's transaction
    sharing           what a call chain may want that is one of several holders
    refused           a block that does not begin: what its caller is told

    decorator         distributed_lockable; call: its stages; key_templates: its key=, and what a function is called
    once              once, a decorated function whose end leaves a record; plain_values: what it keeps of values
    leader            leader, of many processes the one that leads: a thread over lock(...)
    hooks             what a framework or a database library offers: Integration
    fencing           fences on their way to where they are checked
    request_context   the request of a task or a command: an id, and no lock around it
    call_site         which line of code makes a lock
    events            what happens, in one stream, for those who listen; live_leases: what they keep of each lease

No import goes in a circle, and nothing here imports a framework or a store.
"""
