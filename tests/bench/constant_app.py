"""What the service is measured beside: a FastAPI route that returns a constant, served the same."""

from __future__ import annotations

from fastapi import FastAPI

from memgate_service.http.serving import serve
from memgate_service.settings import ServiceSettings

app = FastAPI()


@app.get("/constant")
async def read_constant() -> dict[str, str]:
    """Return a constant."""
    return {"status": "ok"}


if __name__ == "__main__":
    serve(app, ServiceSettings.from_environment())
