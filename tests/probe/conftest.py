"""One thread per process: the tests run side by side, and their tensors are small. None leaves a mode of torch behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_modes() -> Iterator[None]:
    """A mode that is left on torch's stacks changes what later sessions of the process do."""
    yield
    assert (_get_current_function_mode_stack(), _get_current_dispatch_mode_stack()) == ([], [])
