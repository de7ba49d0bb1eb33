"""``python -m memgate_service``: the HTTP service on its own."""

from memgate_service.dashboard.routes import Dashboard
from memgate_service.http.app import create_app
from memgate_service.http.dependencies import Dependencies
from memgate_service.http.serving import serve
from memgate_service.settings import ServiceSettings
from memgate_worker.logs import set_up_logs

settings = ServiceSettings.from_environment()
set_up_logs()
app = create_app(settings)
deps: Dependencies = app.state.dependencies
dashboard: Dashboard = app.state.dashboard


def stop() -> None:
    """Let waiting clients and live pages end soon."""
    deps.waiters.stop()
    dashboard.hub.stop()


serve(app, settings, on_stop=stop)
