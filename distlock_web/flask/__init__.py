"""Flask: ``DistLock(app)`` gives every request an id, every app its stores, and a busy lock its 409."""

from importlib.util import find_spec

from ..locks import hooks
from ..web import texts
from .catalogue import running_catalogue
from .extension import DistLock
from .integration import FlaskIntegration
from .lock_pages import held_locks_blueprint

# Now, not in init_app: functions may be decorated before there is an app.
hooks.install(FlaskIntegration())
texts.add_catalogue(running_catalogue)
if find_spec("sqlalchemy") is not None:
    from .transactions import FlaskSQLAlchemyIntegration

    hooks.install(FlaskSQLAlchemyIntegration())

__all__ = ["DistLock", "held_locks_blueprint"]
