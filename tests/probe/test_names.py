"""The names of layers: those of the one model that trains, or led by the class of the root where there are more."""

from __future__ import annotations

import copy

import torch
from torch import nn

from amp_doctor.probe import Probe


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.stem(x)))


class Teacher(Student):
    pass


def distil(student: nn.Module, teacher: nn.Module, average: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for _ in range(steps):
        x = torch.randn(3, 4)
        with torch.no_grad():
            target = teacher(x)
        loss = nn.functional.mse_loss(student(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            average(x)


def test_models_that_are_only_evaluated_do_not_lengthen_names() -> None:
    torch.manual_seed(0)
    student = Student()
    with Probe(steps=3) as probe:
        distil(student, Teacher().eval(), copy.deepcopy(student), 3)
    assert [layer.name for layer in probe.profile.layers] == ["stem", "head"]


def test_two_models_that_train_are_told_apart() -> None:
    torch.manual_seed(0)
    one, two, three = Student(), Student(), Teacher()
    optimizer = torch.optim.SGD([*one.parameters(), *two.parameters(), *three.parameters()], lr=0.1)
    with Probe(steps=1) as probe:
        (one(torch.randn(3, 4)) + two(torch.randn(3, 4)) + three(torch.randn(3, 4))).sum().backward()
        optimizer.step()
    assert [layer.name for layer in probe.profile.layers] == [
        "Student.stem", "Student.head", "Student#2.stem", "Student#2.head", "Teacher.stem", "Teacher.head"
    ]  # fmt: skip
