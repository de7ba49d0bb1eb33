"""``memgate certificates``: the webhooks' certificate in a cluster without cert-manager."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from memgate.errors import MissingExtraError
from memgate_service.admission.kubernetes.cluster import Cluster
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.cli.commands.options import AsJson

if TYPE_CHECKING:
    from memgate_service.admission.kubernetes.certificates import Kept


def certificates_command(
    secret: Annotated[str, typer.Option(help="Secret that holds the certificate; it must exist.")],
    namespace: Annotated[str, typer.Option(help="Where the Secret is.")],
    host: Annotated[
        list[str],
        typer.Option(help="Name that the webhook is called by, SERVICE.NAMESPACE.svc; repeatable."),
    ],
    webhook: Annotated[
        str, typer.Option(help="Name of the two webhook configurations that must trust it.")
    ],
    days: Annotated[int, typer.Option(min=1, max=3650, help="Life of a new certificate.")] = 365,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Renew now, and trust no earlier one: its key may have leaked."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Keep the certificate of the admission webhooks fresh; the Helm chart runs this every day.

    Does nothing while more than a third of its life is left. Needs get and patch on the Secret and
    on the webhook configurations, and no other right.
    """
    try:
        from memgate_service.admission.kubernetes.certificates import (
            CertificateKeeper,
            CertificateTarget,
        )
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(
            "memgate certificates", error, extra="service,kubernetes"
        ) from None
    target = CertificateTarget(
        namespace=namespace, secret=secret, hosts=tuple(host), webhook=webhook
    )
    cluster = Cluster.connect(AdmissionSettings.from_environment().kubeconfig)
    keeper = CertificateKeeper(cluster, target, lambda: datetime.now(UTC), timedelta(days=days))
    kept = keeper.keep(force=force)
    typer.echo(_as_json(kept) if as_json else _as_text(kept, secret))


def _as_json(kept: Kept) -> str:
    return json.dumps(
        {"renewed": kept.renewed, "changed": kept.changed, "end": kept.end.isoformat()}
    )


def _as_text(kept: Kept, secret: str) -> str:
    done = f"renewed, because {kept.renewed}" if kept.renewed else "still good"
    told = f"; updated {' and '.join(kept.changed)}" if kept.changed else ""
    return f"{secret}: {done}; it ends on {kept.end:%Y-%m-%d}{told}"
