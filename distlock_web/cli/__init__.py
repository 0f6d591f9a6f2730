"""The command line: ``distlock``, ``python -m distlock_web``, ``manage.py distlock`` and ``flask distlock`` are one.

``main``        where the four begin: arguments, the command, the exit code
``parser``      subcommands, options and help
``exit_codes``  what a script can rely on
``output``      text on a stream: aligned, coloured at a terminal only
``held``        ``list``, ``show``, ``release``
``run``         ``run``: a command under a lock; ``launch`` is what becomes the command
``doctor``      ``doctor``; what it looks for is in ``web.doctor`` and in the backends
``init``        ``init``, ``redlock``
"""
