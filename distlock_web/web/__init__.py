"""What web frameworks share. It sits on ``ops``, ``locks`` and ``core``.

A framework, and its requests::

    framework        what a web framework says of itself, and what follows from that; asgi: the same under ASGI
    request_ids      the id's header, and the bounds of one request
    neighbours       what other programs in this process call it
    settings         what a project sets beside its DISTLOCK
    view_checks      what is wrong with a locked view, found when it is registered

What a client gets::

    error_responses  what it is told when its request cannot run under its lock
    streaming        a lease that goes on until the body of a response has been sent
    success          whether a response says that the work was done
    asked            who asks for what, for once; asgi_bodies: the body as it comes under ASGI
    kept_answers     what once keeps of an answer, and how that is made again
    texts            all of these sentences, in its language

What people see::

    lock_pages       the pages of held locks; lock_presenter: one row; page_assets: templates, style sheet, script
    release_pages    the release by force on the pages: what is asked before, and what became of it
"""
