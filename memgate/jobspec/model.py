"""Which model a job trains."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from memgate.jobspec.parts import Part, Settings
from memgate.mistakes import RuleError


class ModelSource(StrEnum):
    """Where a model comes from."""

    TORCHVISION = "torchvision"
    TIMM = "timm"
    TRANSFORMERS = "transformers"
    DIFFUSERS = "diffusers"

    @property
    def has_configs(self) -> bool:
        """Its models are made of a class and a configuration."""
        return self in (ModelSource.TRANSFORMERS, ModelSource.DIFFUSERS)


def find_architecture(config: dict[str, Any]) -> str | None:
    """Return the class that a whole ``config.json`` names, if it is one class."""
    match config:
        case {"architectures": [str(name)]} | {"_class_name": str(name)}:
            return name
    return None


class ModelSpec(Part):
    """Which model, and how it is made. Weights are never downloaded: they do not matter."""

    model_config = ConfigDict(populate_by_name=True)

    source: Annotated[ModelSource, Field(examples=["torchvision", "transformers"])]
    """The library."""
    name: str | None = None
    """A constructor of torchvision or timm, or a public model in our own table."""
    class_name: Annotated[str | None, Field(alias="class")] = None
    """A class of transformers or diffusers, such as ``GPT2LMHeadModel``; beside a ``name`` of
    transformers, the class by which that model is trained, such as an ``AutoModelFor...``."""
    config: Settings = Field(default_factory=dict)
    """Passed to that class's configuration; a whole ``config.json`` names its class itself."""
    kwargs: Settings = Field(default_factory=dict)
    """Passed to the constructor of torchvision or timm."""

    def model_post_init(self, _: Any) -> None:
        """Check that it has what the source needs, and nothing that the source cannot use."""
        if self.source.has_configs:
            self._check_configured()
        elif self.name is None:
            raise RuleError(f"{self.source} takes 'name' and 'kwargs'", "add 'name'")
        elif self.class_name or self.config:
            rule = f"{self.source} takes 'name' and 'kwargs', not 'class' or 'config'"
            raise RuleError(rule, "write what its constructor takes in 'kwargs'")

    @property
    def architecture(self) -> str | None:
        """The class: as given, or as a whole config.json in ``config`` names it."""
        return self.class_name or find_architecture(self.config)

    @property
    def title(self) -> str:
        """What people call it: its name, or its class."""
        return self.name or self.architecture or self.source

    def _check_configured(self) -> None:
        rule = f"{self.source} takes 'class' and 'config', a public 'name', or both"
        if self.source is ModelSource.DIFFUSERS:
            rule = f"{self.source} takes 'class' and 'config', or a public 'name'"
        if self.kwargs:
            raise RuleError(rule, "write what is in 'kwargs' in 'config'")
        if self.name is None and self.architecture is None:
            raise RuleError(rule, "add 'class' or 'name', or give a whole config.json as 'config'")
        is_of_diffusers = self.source is ModelSource.DIFFUSERS
        if is_of_diffusers and self.name is not None and self.class_name is not None:
            raise RuleError(rule, "leave out 'class' or 'name'")
