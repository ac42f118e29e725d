"""torch.compile is put aside while a session is on.

Hooks that are set after the first compiled call are not seen by compiled code, and earlier ones change what is fused.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from amp_doctor.probe.patches import Patches

_VARIABLE = "TORCHDYNAMO_DISABLE"


class Eager:
    """Sets the variable that torch._dynamo reads when it is imported, or its switch when it has been."""

    def __init__(self) -> None:
        self._variable: str | None = None
        self._switch: bool | None = None

    def install(self, patches: Patches, note: Callable[[str], None]) -> None:
        """Compiled models run eagerly from now on; a script that asks for compilation is told so."""
        self._variable = os.environ.get(_VARIABLE)
        os.environ[_VARIABLE] = "1"
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None:
            self._switch = dynamo.config.disable
            dynamo.config.disable = True

        def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
            def compile(*args: Any, **kwargs: Any) -> Any:  # noqa: A001 - torch's name
                note("torch.compile was asked for; under the probe the model ran eagerly")
                return original(*args, **kwargs)

            return compile

        patches.wrap(torch, "compile", wrapped)

    def remove(self) -> None:
        """As it was; twice is once."""
        if self._variable is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = self._variable
        if self._switch is not None:
            sys.modules["torch._dynamo"].config.disable = self._switch
            self._switch = None
