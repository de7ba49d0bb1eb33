"""What a command in a sandbox does not get: keys in its environment, and in files of its owner."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

#: what a secret variable has instead; a job that only checks that there is one goes on
DUMMY = "memgate-rehearsal"

_SECRET = re.compile(
    r"(^|_)(TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|CREDENTIALS|API_?KEY"
    r"|ACCESS_?KEY(_ID)?|PRIVATE_?KEY|SECRET_?KEY|AUTH|COOKIE)($|_)",
    re.IGNORECASE,
)

#: sockets of programs that would act for the user
_SOCKETS = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS")
_MORE_SOCKETS = ("DOCKER_HOST", "KUBECONFIG", "SLURM_JWT", "XAUTHORITY", "KRB5CCNAME")

_IN_HOME = (
    *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials"),
    *(".config/gcloud", ".config/gh", ".config/rclone", ".config/hub", ".pgpass", ".s3cfg"),
    *(".boto", ".oci", ".pypirc", ".npmrc", ".Xauthority", ".vault-token", ".terraform.d"),
    *(".cache/huggingface/token", ".huggingface/token", ".kaggle", ".globusonline", ".mc"),
)
_ELSEWHERE = (
    *("/run/munge", "/var/run/munge", "/run/docker.sock", "/run/containerd", "/run/podman"),
    *("/run/dbus", "/run/systemd/private", "/run/secrets", "/run/user"),
)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with dummies for secrets, and without ways to programs that act."""
    ways = {*_SOCKETS, *_MORE_SOCKETS}
    return {
        name: DUMMY if _SECRET.search(name) else value
        for name, value in environment.items()
        if name not in ways
    }


def secret_places(home: Path, more: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files and directories that a command must not see, as far as they exist."""
    for path in (*(home / name for name in _IN_HOME), *map(Path, _ELSEWHERE), *more):
        try:
            if path.exists():
                yield path.resolve()
        except OSError:  # it cannot even be looked at
            continue
