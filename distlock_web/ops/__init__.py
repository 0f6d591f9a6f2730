"""What an operator sees and does, on every page and on every command line: they put it into words of their own.

The package itself exports ``held_locks``, which are of use without either, too::

    held_locks    who holds what; which held lock is meant; the release by force
    lock_browser  held locks sorted and searched
    doctor        what is set up so that it will hurt, for the command line and Django's deploy check
    readable      text from outside without control characters; lengths of time
"""
