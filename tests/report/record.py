"""Records fixtures/profiles anew: real runs of the fixtures' scripts, for the tests and the README.

python -m tests.report.record [NAME...]
"""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import ROOT

PROFILES = ROOT / "fixtures" / "profiles"
# Name -> script under fixtures/, steps, and further options.
RUNS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "tones": ("demo/probe_train.py", 50, ()),
    "vanishing-rnn": ("models/vanishing_rnn.py", 20, ()),
    "t5-feed-forward": ("models/t5_feed_forward.py", 20, ()),
    "attention-logits": ("models/attention_logits.py", 20, ()),
    "dropout-overflow": ("models/dropout_overflow.py", 20, ()),
    "tiny-loss": ("models/tiny_loss.py", 20, ()),
    "huge-loss": ("models/huge_loss.py", 20, ()),
    "adam-eps-half": ("models/adam_eps_half.py", 20, ()),
    "bf16-swallow": ("models/bf16_swallow.py", 20, ()),
    "batchnorm-half": ("models/batchnorm_half.py", 20, ()),
    "endless-skipping": ("models/unseen/endless_skipping.py", 20, ("--mode", "observe")),
    "nan-weights": ("models/unseen/nan_weights.py", 20, ()),
    "scaler-healthy": ("models/unseen/grad_scaler_healthy.py", 20, ()),
    "healthy-cnn": ("models/healthy_cnn.py", 20, ()),
    "healthy-transformer": ("models/healthy_transformer.py", 20, ("--layers", "*0*")),
    "no-step": ("clients/evaluate_only.py", 20, ()),
}


def record(name: str) -> None:
    """Probe one script and keep its profile; whatever the script itself says is of no interest."""
    script, steps, options = RUNS[name]
    file = PROFILES / f"{name}.json"
    probe = [sys.executable, "-m", "amp_doctor", "probe", "--steps", str(steps), "--fail-on", "never", *options]
    done = subprocess.run(
        [*probe, "--profile", str(file), f"fixtures/{script}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if not file.exists():
        sys.exit(done.stderr)
    values = json.loads(file.read_text("utf-8").replace(f"{ROOT}/", ""))
    file.write_text(json.dumps(values, indent=None, separators=(",", ":")) + "\n", "utf-8")
    print(f"{name}: status {done.returncode}, {file.stat().st_size} bytes")


def main(names: list[str]) -> None:
    """Record what is named, or everything."""
    for name in names or RUNS:
        record(name)


if __name__ == "__main__":
    main(sys.argv[1:])
