"""``python -m service``: the HTTP service on its own."""

import uvicorn

from service.app import create_app
from service.settings import ServiceSettings

settings = ServiceSettings.from_environment()
uvicorn.run(create_app(settings), host=settings.host, port=settings.port)
