"""The names of all ``MEMGATE_*`` environment variables, so that a program can report misspelt ones.

Programs share an environment: a worker must know the service's variables too, though it does not
import the service. A test compares this list with the settings, and with what the code reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from memgate.mistakes import Mistake, suggest
from memgate.near_names import find_near

_PREFIX = "MEMGATE_"

#: fields of settings: of the service, of workers, of the gate
SETTINGS = frozenset(
    """
    admission_audit_seconds admission_events admission_excluded_namespaces admission_gpus
    admission_mode admission_on_timeout admission_on_uncertain admission_paths admission_policy
    admission_policy_resources admission_releasers admission_wait_seconds advice_seconds
    allowed_hosts api_keys audit_days audit_max body_timeout_seconds cluster_name host hub
    job_memory_bytes job_timeout_seconds kubeconfig lease_seconds link_days listen_fd max_attempts
    max_body_bytes max_jobs max_jobs_each max_queued max_queued_each max_timelines_bytes
    max_trace_bytes max_upload_bytes max_uploads_bytes max_uploads_bytes_each max_viewers
    max_wait_seconds max_waiting max_waiting_each port public_url queues rate_limit redis_url
    rehearsal_image rehearsal_memory_gib rehearsal_seconds replicas result_ttl_seconds right_size
    sandbox sandbox_level serve tls_certificate tls_key trace_ttl_seconds upload_timeout_seconds
    """.split()  # noqa: SIM905  a list of names, not of strings
)

#: read by the client, by runtimes, by compose files and by the plugins of Slurm
OTHERS = frozenset(
    """
    api_key cache_dir estimate_id gpus job redis_password runtimes_dir url
    """.split()  # noqa: SIM905  a list of names, not of strings
)

#: set by our own processes for their children
_OWN = re.compile("MEMGATE_PHANTOM_.*")

#: what Kubernetes adds to pods next to a Service whose name is or begins with memgate
_SERVICE_LINK = re.compile(
    r"MEMGATE_.*(SERVICE_HOST|SERVICE_PORT.*|PORT_\d+_(TCP|UDP).*)|MEMGATE_\w+_PORT"
)


def find_unknown_variables(names: Iterable[str]) -> Iterator[Mistake]:
    """Yield each variable that looks like a setting but is not, with similar names."""
    known = {f"{_PREFIX}{name.upper()}" for name in SETTINGS | OTHERS}
    for name in sorted(names):
        if not name.startswith(_PREFIX) or name in known:
            continue
        if _OWN.fullmatch(name) or _SERVICE_LINK.fullmatch(name):
            continue
        near = find_near(name.removeprefix(_PREFIX), {one.removeprefix(_PREFIX) for one in known})
        near = tuple(f"{_PREFIX}{one}" for one in near)
        step = suggest(near) or "it has no effect"
        rule = "it is set, and there is no such setting"
        yield Mistake(field=name, value="", rule=rule, next_step=step, near=near)
