"""A made-up lint run with something of everything, for the tests of the reports."""

from __future__ import annotations

from amp_doctor.finding import Applicability, Confidence, Edit, Finding, Fix, Related, Severity, Span
from amp_doctor.lint.result import InputError, LintReport

TRAIN = """\
import torch

scaler = torch.amp.GradScaler("cuda")
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)

    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
LAYERS = "import torch\n\n\ndef mask(scores, padding):\n\treturn scores.masked_fill(padding, -1e9)  # Größe, 数\n"
SOURCES = {"train.py": TRAIN, "src/my layers.py": LAYERS}
SUMMARIES = {"AMP201": "Gradients are clipped while they still carry the loss scale."}

_CLIP = TRAIN.index("    torch.nn.utils")
CLIP = Finding(
    code="AMP201",
    name="clip-before-unscale",
    severity=Severity.ERROR,
    message="gradients are clipped while still multiplied by the loss scale",
    path="train.py",
    span=Span(9, 5, 9, 60),
    related=(Related("train.py", Span(8, 5, 8, 34), "the gradients carry the loss scale from here on"),),
    fix=Fix(
        Applicability.UNSAFE,
        "insert scaler.unscale_(optimizer) before the clipping",
        (Edit(_CLIP, _CLIP, "    scaler.unscale_(optimizer)\n"),),
    ),
)
_CONSTANT = LAYERS.encode().index(b"-1e9")
CONSTANT = Finding(
    code="AMP501",
    name="constant-beyond-half",
    severity=Severity.WARNING,
    message="-1e9 is -inf in float16: 100% of the range, a: b, c",
    path="src/my layers.py",
    span=Span(5, 37, 5, 41),
    confidence=Confidence.MEDIUM,
    related=(
        Related("train.py", Span(5, 10, 5, 53), "the model runs under FP16 autocast"),
        Related("gone.py", Span(3, 1, 3, 5), "through a file that is not at hand"),
    ),
    fix=Fix(Applicability.SAFE, "use torch.finfo", (Edit(_CONSTANT, _CONSTANT + 4, "torch.finfo(x).min"),)),
)
HIDDEN = Finding(
    code="AMP401",
    name="half-batchnorm",
    severity=Severity.WARNING,
    message="hidden by a comment",
    path="train.py",
    span=Span(1, 1, 1, 13),
    suppressed=True,
)
NOTE = Finding(
    code="AMP302",
    name="loss-outside-autocast",
    severity=Severity.NOTE,
    message="over two lines",
    path="explore.ipynb",
    span=Span(2, 1, 3, 4),
    cell=3,
)
REPORT = LintReport(
    findings=(NOTE, CONSTANT, HIDDEN, CLIP),
    errors=(InputError("broken.py", "no permission to read it"),),
    files=14,
    silences=2,
)
