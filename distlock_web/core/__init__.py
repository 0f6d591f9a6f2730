"""Values and wiring: all that a backend may see. Standard library only; no lock, and no framework or driver imported.

What a store is asked, and what it knows of its callers::

    backend           the seam: Backend, Port, Claim, and what they answer
    errors            what callers are told
    keys              any value as the name of a lock
    request_id        who asks: the request's token, and the holder as people read it
    runtime           threads and asyncio, in pairs; the clock, and the tokens of acquisitions
    process           this process, and the copies of it
    worker            a thread of ours, which ends by itself
    formats           which format of what is stored is read and written
    findings          one line of the doctor

From the settings to a store::

    setting           a row of a table of settings: name, check, default, meaning
    config            DISTLOCK as checked values
    location          the text of a LOCATION; database_address: a database as a framework knows it
    loading           one store's values as its backend
    registry          alias -> store; what holding its locks usually takes
    no_stores         why there are none
    integrations      whom imports of frameworks have registered
"""
