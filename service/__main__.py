"""``python -m service``: the HTTP service on its own."""

from service.app import create_app
from service.dashboard.routes import Dashboard
from service.parts import Parts
from service.serving import serve
from service.settings import ServiceSettings
from worker.logs import set_up_logs

settings = ServiceSettings.from_environment()
set_up_logs()
app = create_app(settings)
parts: Parts = app.state.parts
dashboard: Dashboard = app.state.dashboard


def stop() -> None:
    """Let nobody wait, nor watch, for much longer."""
    parts.waiters.stop()
    dashboard.hub.stop()


serve(app, settings, on_stop=stop)
