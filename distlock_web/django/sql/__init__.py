"""The tables of the SQL store, for ``"DATABASE"``: ``INSTALLED_APPS += ["distlock_web.django.sql"]``."""
