"""The lock itself. Reading order, from what a caller writes to what that is made of::

    lock              lock(...), Lock: the entry points
    options           which options there are; options and the store's settings -> a Spec
    elsewhere         the words of other libraries for them
    scope             one block under its locks; cancelling: on_lost="cancel"
    engine            the algorithm: take, wait, all names or none. Begin here to learn how it works
    refused           a block that does not begin: what its caller is told
    hold              one name held: its states and its deadline
    lease             Lease, what the caller holds: a view of a scope; lost: the event that it is lost
    watchdog          leases are extended: by hand, and by one thread for each server, which tells of losses as well
    ending            how a scope ends: released, lost, never begun, interrupted
    completion        what was begun is done, whatever comes meanwhile

The rooms, each of one feature that the way of a lock passes by::

    reentry           a lock inside of the same lock
    reentry.chain     which scopes the running code is inside of
    reentry.entering  a lock that they hold is entered again
    reentry.gate      in which its siblings take turns
    reentry.sharing   what a call chain may want that is one of several holders
    attach            attach(ticket): the entry point to a lock that is handed over
    handover          detach, the ticket, and who takes on with it
    kept              how long a lock stays taken after a success: hold_at_least, and the record of once
    commit            what until="commit" does with a lease
    open_transaction  the warning of a transaction of other code's

A function under a lock, and what it is made of::

    decorator         distributed_lockable: what is decorated, and checked then
    lockable          what can be locked; wrapping: what stands around a function
    call_options      what a decorator is told of a call, beside the options of its lock
    key_templates     its key=
    function_names    what a function is called, and with what, behind a framework or another decorator
    call              a call of it, stage by stage
    once              once, a decorated function whose end leaves a record
    records           that record as it is stored; plain_values: what it keeps of values

What is built on a lock, and what all of these ask or tell::

    leader            leader, of many processes the one that leads: a thread over lock(...)
    fencing           fences on their way to where they are checked
    hooks             what a framework or a database library offers: Integration
    request_context   the request of a task or a command: an id, and no lock around it
    call_site         which line of code makes a lock
    events            what happens, in one stream, for those who listen; live_leases: what they keep of each lease

No import goes in a circle, and nothing here imports a framework or a store.
"""
