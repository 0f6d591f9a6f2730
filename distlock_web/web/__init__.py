"""What Django and Flask share. It sits on ``locks`` and ``core``, and no other part of the package imports it.

The package itself exports ``held_locks``, which are of use without a framework, too.

``streaming``        a lease that goes on until the body of a response has been sent
``error_responses``  what a client is told when its request cannot run under its lock
``asked``            who asks for what, for ``once``
``kept_answers``     what ``once`` keeps of an answer, and how that is made again
``request_ids``      the id's header, and the bounds of one request
``held_locks``       who holds what; which held lock is meant; the release by force
``lock_browser``     held locks sorted and searched
``lock_pages``       their pages: what the templates show (``lock_presenter``, ``page_assets``)
``release_pages``    the release by force on the pages: what is asked before, and what became of it
``doctor``           what is set up so that it will hurt, for the command line and Django's deploy check
``printable``        text from outside without control characters
"""
