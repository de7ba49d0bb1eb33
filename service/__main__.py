"""``python -m service``: the HTTP service on its own."""

import uvicorn

from service.app import create_app
from service.protocol import bounded_protocol
from service.settings import ServiceSettings
from worker.logs import set_up_logs

settings = ServiceSettings.from_environment()
set_up_logs()
uvicorn.run(
    create_app(settings),
    host=settings.host,
    port=settings.port,
    http=bounded_protocol(settings.body_timeout_seconds),
    ws="none",
    log_config=None,
    access_log=False,
    server_header=False,
    ssl_certfile=settings.tls_certificate,
    ssl_keyfile=settings.tls_key,
    timeout_graceful_shutdown=30,
)
