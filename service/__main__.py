"""``python -m service``: the HTTP service on its own."""

from service.app import create_app
from service.serving import serve
from service.settings import ServiceSettings
from worker.logs import set_up_logs

settings = ServiceSettings.from_environment()
set_up_logs()
serve(create_app(settings), settings)
