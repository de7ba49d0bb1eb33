"""A Kubernetes object -> the pods that it is or will create, wherever it describes them.

Objects of other kinds may contain anything: what is not as expected counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from memgate.gpus import find_machine
from memgate_service.admission.kubernetes.copies import ONE_POD, Copies, count_copies
from memgate_service.admission.kubernetes.json_parts import (
    JsonObject,
    as_list,
    as_object,
    escape,
    find_part,
    unescape,
)
from memgate_service.admission.kubernetes.quantities import is_nothing
from memgate_service.admission.kubernetes.settings import Group, Shape

#: annotations of a pod that are for us
JOB = "memgate.dev/job"
JOB_CONFIGMAP = "memgate.dev/job-configmap"
GPU = "memgate.dev/gpu"

#: annotations on which an answer depends: ours, and those of KAI's scheduler
_LOOKED_AT = (JOB, JOB_CONFIGMAP, GPU, "gpu-memory", "gpu-fraction")

#: labels of nodes that name their GPU: NVIDIA's feature discovery, Google's, Amazon's, Karpenter's
PRODUCT_LABEL = "nvidia.com/gpu.product"
PRODUCT_LABELS = (
    PRODUCT_LABEL,
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)
#: the machine type that a cloud gave a node, which says its GPU where memgate knows the type
MACHINE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
#: what a node's GPU has, in MiB
MEMORY_LABEL = "nvidia.com/gpu.memory"

#: vendors whose resources are GPUs, or parts of them
_RESOURCES = ("nvidia.com/", "volcano.sh/", "koordinator.sh/")

_TEMPLATE = ("/spec/template",)

#: by kind and group
SHAPES: dict[str, Shape] = {
    "Pod": Shape(templates=("",)),
    "Job.batch": Shape(templates=_TEMPLATE, suspend="/spec/suspend", pods="perhaps"),
    "CronJob.batch": Shape(templates=("/spec/jobTemplate/spec/template",), is_fixed=False),
    "Deployment.apps": Shape(templates=_TEMPLATE, is_fixed=False),
    "StatefulSet.apps": Shape(templates=_TEMPLATE, is_fixed=False),
    "PyTorchJob.kubeflow.org": Shape(
        templates=("/spec/pytorchReplicaSpecs/*/template",),
        suspend="/spec/runPolicy/suspend",
        pods="together",
    ),
    "MPIJob.kubeflow.org": Shape(
        templates=("/spec/mpiReplicaSpecs/*/template",),
        suspend="/spec/runPolicy/suspend",
        pods="together",
    ),
    "TrainJob.trainer.kubeflow.org": Shape(
        trainer="/spec/trainer", suspend="/spec/suspend", pods="together"
    ),
    "RayJob.ray.io": Shape(
        templates=(
            "/spec/rayClusterSpec/headGroupSpec/template",
            "/spec/rayClusterSpec/workerGroupSpecs/*/template",
        ),
        suspend="/spec/suspend",
        pods="at_most",
    ),
    "RayCluster.ray.io": Shape(
        templates=("/spec/headGroupSpec/template", "/spec/workerGroupSpecs/*/template"),
        suspend="/spec/suspend",
        pods="at_most",
    ),
    "JobSet.jobset.x-k8s.io": Shape(
        templates=("/spec/replicatedJobs/*/template/spec/template",),
        suspend="/spec/suspend",
        pods="together",
    ),
    "Job.batch.volcano.sh": Shape(templates=("/spec/tasks/*/template",), pods="together"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a container asks for."""

    #: JSON pointer to its ``resources``
    pointer: str
    #: of GPUs; other resources do not affect the answer
    limits: JsonObject

    @property
    def asked(self) -> JsonObject:
        """Those above zero."""
        return {name: value for name, value in self.limits.items() if not is_nothing(value)}


class Rule(NamedTuple):
    """A requirement on a node's label that says which GPU the node has."""

    label: str
    #: one of these; or more than the first
    values: tuple[str, ...]
    is_more: bool = False


#: rules that must all hold
Term = tuple[Rule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod, or the template of pods."""

    #: JSON pointer to it; empty for a pod itself
    pointer: str
    annotations: Mapping[str, str]
    containers: tuple[Container, ...]
    #: requirements on its node: one of these must hold, and one without rules holds for every GPU
    nodes: tuple[Term, ...]
    scheduler: str
    #: how many of them there are in one job
    copies: Copies = ONE_POD
    #: it is written as a pod is; otherwise only its resources are known
    is_template: bool = True

    @property
    def label(self) -> str:
        """Name it for people: spec.template."""
        return self.pointer.strip("/").replace("/", ".") or "the pod"


def find_pods(document: JsonObject, shape: Shape) -> tuple[Pod, ...]:
    """Return the pods of an object."""
    pods = [
        _pod(document, pointer, as_object(template), shape.pods)
        for pattern in shape.templates
        for pointer, template in _matches(document, pattern)
    ]
    if shape.trainer is not None:
        pods += [
            _trainer(document, pointer, as_object(trainer), shape.pods)
            for pointer, trainer in _matches(document, shape.trainer)
        ]
    return tuple(pods)


def is_set(document: JsonObject, pointer: str) -> bool:
    """Say whether something is true, such as ``suspend`` of a job."""
    return any(value is True for _, value in _matches(document, pointer))


def _matches(value: object, pattern: str, pointer: str = "") -> Iterator[tuple[str, object]]:
    """Yield the pointers, and what is there, that a pointer with ``*`` in it stands for."""
    if not pattern:
        yield pointer, value
        return
    first, slash, rest = pattern[1:].partition("/")
    rest = slash + rest
    if first == "*":
        items = enumerate(value) if isinstance(value, list) else as_object(value).items()
        for key, item in items:
            yield from _matches(item, rest, f"{pointer}/{escape(str(key))}")
        return
    key = unescape(first)
    if isinstance(value, dict) and key in value:
        yield from _matches(value[key], rest, f"{pointer}/{first}")


def _pod(document: JsonObject, pointer: str, pod: JsonObject, group: Group) -> Pod:
    spec = as_object(pod.get("spec"))
    return Pod(
        pointer=pointer,
        annotations=_annotated_by(document, pointer),
        containers=_containers(f"{pointer}/spec", spec),
        nodes=_nodes(spec),
        scheduler=str(spec.get("schedulerName") or ""),
        copies=count_copies(document, pointer, group),
    )


def _trainer(document: JsonObject, pointer: str, trainer: JsonObject, group: Group) -> Pod:
    """Kubeflow's TrainJob has resources for each node, and overrides of a template elsewhere."""
    overrides = as_list(as_object(document.get("spec")).get("podTemplateOverrides"))
    selector: dict[str, str] = {}
    for override in overrides:
        selector |= _texts(as_object(as_object(override).get("spec")).get("nodeSelector"))
    resources = {"resources": trainer.get("resourcesPerNode")}
    return Pod(
        pointer=pointer,
        annotations=_annotated_by(document, pointer),
        containers=(_container(f"{pointer}/resourcesPerNode", resources),),
        nodes=(select_node(selector),),
        scheduler="",
        is_template=False,
        copies=count_copies(document, f"{pointer}/resourcesPerNode", group),
    )


def _container(pointer: str, container: JsonObject) -> Container:
    resources = as_object(container.get("resources"))
    limits = {**as_object(resources.get("requests")), **as_object(resources.get("limits"))}
    ours = {name: value for name, value in limits.items() if name.startswith(_RESOURCES)}
    return Container(pointer=pointer, limits=ours)


def _containers(pointer: str, spec: JsonObject) -> tuple[Container, ...]:
    """Return a pod's containers; if none of them wants a GPU, also the init containers that do."""
    main, before = (
        [
            _container(f"{pointer}/{name}/{index}/resources", as_object(container))
            for index, container in enumerate(as_list(spec.get(name)))
        ]
        for name in ("containers", "initContainers")
    )
    if not any(container.asked for container in main):
        main += [container for container in before if container.asked]
    return tuple(main)


def _nodes(spec: JsonObject) -> tuple[Term, ...]:
    """Return the rules for a pod's node: all of its selector, and one term of its affinity."""
    affinity = as_object(as_object(spec.get("affinity")).get("nodeAffinity"))
    required = as_object(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    selected = select_node(_texts(spec.get("nodeSelector")))
    terms = filter(None, map(as_object, as_list(required.get("nodeSelectorTerms"))))
    found = tuple((*selected, *_expressed(term)) for term in terms)
    return tuple(dict.fromkeys(found)) or (selected,)


def select_node(labels: Mapping[str, str]) -> Term:
    """Return what the labels that a node must have say about its GPU."""
    wanted = (*PRODUCT_LABELS, *MACHINE_LABELS, MEMORY_LABEL)
    found = (Rule(label, (labels[label],)) for label in wanted if label in labels)
    return tuple(rule for rule in found if _says_gpu(rule))


def _expressed(term: JsonObject) -> Iterator[Rule]:
    for expression in map(as_object, as_list(term.get("matchExpressions"))):
        label, operator = expression.get("key"), expression.get("operator")
        values = tuple(map(str, as_list(expression.get("values"))))
        if not values:
            continue
        rule = Rule(str(label), values)
        if operator == "In" and _says_gpu(rule):
            yield rule
        elif operator == "Gt" and label == MEMORY_LABEL:
            yield Rule(MEMORY_LABEL, values[:1], is_more=True)


def _says_gpu(rule: Rule) -> bool:
    """Say whether a rule is about a node's GPU; types of machines without one are not known."""
    if rule.label in MACHINE_LABELS:
        return all(find_machine(value) for value in rule.values)
    return rule.label in (*PRODUCT_LABELS, MEMORY_LABEL)


def _annotated_by(document: JsonObject, pointer: str) -> dict[str, str]:
    """Return the annotations of a pod and of what creates it: the object, job templates in it."""
    inside: object = document
    given = _annotations(document)
    for key in pointer.split("/")[1:]:
        inside = find_part(inside, key)
        given = _over(given, _annotations(as_object(inside)))
    return given


def _over(outer: Mapping[str, str], inner: Mapping[str, str]) -> dict[str, str]:
    """Combine annotations: those nearer to the pod win."""
    if {JOB, JOB_CONFIGMAP} & inner.keys():  # either describes the job
        outer = {name: text for name, text in outer.items() if name not in (JOB, JOB_CONFIGMAP)}
    return {**outer, **inner}


def _annotations(document: JsonObject) -> dict[str, str]:
    given = _texts(as_object(document.get("metadata")).get("annotations"))
    return {name: given[name] for name in _LOOKED_AT if name in given}


def _texts(value: object) -> dict[str, str]:
    return {key: text for key, text in as_object(value).items() if isinstance(text, str)}
