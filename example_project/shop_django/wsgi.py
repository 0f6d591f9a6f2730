from __future__ import annotations

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.shop_django.settings")

# A demo serves its own CSS, the admin's too. A real site leaves that to its web server.
application = StaticFilesHandler(get_wsgi_application())
