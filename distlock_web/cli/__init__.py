"""The command line: ``distlock``, ``python -m distlock_web``, ``manage.py distlock`` and ``flask distlock`` are one.

How one begins and ends::

    main        where the four begin: arguments, the command, the exit code
    parser      subcommands and options; help_texts: what --help says of them
    exit_codes  what a script can rely on
    output      text on a stream: aligned, coloured at a terminal only

The commands::

    held        list, show, release
    done        once: what is done, and what is to run again
    run         run, a command under a lock; launch: what becomes the command
    doctor      doctor; what it looks for is in ops.doctor and in the backends
    init        init, redlock
"""
