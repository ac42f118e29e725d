"""Which scripts set up AMP for CUDA, as their source, arguments and environment say; nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from amp_doctor.cli.cuda_amp import cuda_amp
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DEVICE = "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
OPTIONS = (
    "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--amp', action='store_true')\n"
    "parser.add_argument('--device', default='cuda')\nparser.add_argument('--no-cuda', action='store_true')\n"
    "parser.add_argument('--mixed-precision', default='no')\nargs = parser.parse_args()\n"
)
OWN = (
    "class Own:\n    def __init__(self, half=False):\n"
    "        self.c = Accelerator(mixed_precision='fp16' if half else 'no')\n"
)

# What a trainer is given, and goes by; what precedes has the default of `device` in it.
TRAINER = (
    "        self.device = torch.device(device)\n        self.scaler = torch.amp.GradScaler(self.device.type)\n"
    "    def step(self):\n        with torch.autocast(self.device.type): pass\n"
)
ON_CUDA = f"class Trainer:\n    def __init__(self, model, device='cuda'):\n{TRAINER}"
ON_CPU = f"class Trainer:\n    def __init__(self, model, device='cpu'):\n{TRAINER}"
GIVEN = f"class Trainer:\n    def __init__(self, model, device):\n{TRAINER}"
CONFIGURED = GIVEN.replace("device)", "cfg)", 1).replace("(device)", "(cfg.device)")
CONFIG = (
    "from dataclasses import dataclass, field\n@dataclass\nclass Config:\n    lr: float = 0.1\n    device: str = {}\n"
)
# A word of CUDA in a script that runs on the CPU.
SEEDED = "torch.cuda.manual_seed_all(0)\n"


def where(tmp_path: Path, code: str, *arguments: str, **environment: str) -> str:
    (tmp_path / "train.py").write_text(f"import torch\n{code}")
    return cuda_amp(str(tmp_path / "train.py"), arguments, environment)


@pytest.mark.parametrize(
    ("code", "arguments", "words"),
    [
        ("with torch.autocast('cuda'):\n    pass\n", "", "train.py:2 enters torch.autocast"),
        ("with torch.amp.autocast(device_type='cuda:0'):\n    pass\n", "", "train.py:2 enters torch.amp.autocast"),
        ("from torch.cuda.amp import autocast\nwith autocast():\n    pass\n", "", "enters torch.cuda.amp.autocast"),
        ("from torch.cuda import amp\n@amp.autocast()\ndef f(): pass\n", "", "enters torch.cuda.amp.autocast"),
        ("scaler = torch.cuda.amp.GradScaler(init_scale=8)\n", "", "makes a torch.cuda.amp.GradScaler"),
        ("scaler = torch.amp.GradScaler()\n", "", "makes a torch.amp.GradScaler"),
        ("class Own(torch.cuda.amp.GradScaler): pass\n", "", "derives from torch.cuda.amp.GradScaler"),
        ("from torch import autocast as ac\nfrom functools import partial\nc = partial(ac, device_type='cuda')\n", "",
         "train.py:4 enters torch.autocast"),
        # The commonest: AMP is on where there is a GPU.
        (DEVICE + "with torch.autocast(device.type, enabled=device.type == 'cuda'): pass\n", "", "train.py:3 enters"),
        (DEVICE + "scaler = torch.amp.GradScaler(device=device)\n", "", "train.py:3 makes"),
        ("use = torch.cuda.is_available()\nwith torch.autocast('cuda', enabled=use): pass\n", "", "train.py:3 enters"),
        ("if torch.cuda.is_available():\n    s = torch.amp.GradScaler('cuda')\n", "", "train.py:3 makes"),
        ("def f(device):\n    with torch.autocast(device.type): pass\nf(torch.device('cuda'))\n", "", "train.py:3"),
        # Options.
        (OPTIONS + "with torch.autocast(args.device, enabled=args.amp): pass\n", "--amp", "train.py:9 enters"),
        (OPTIONS + "if args.amp:\n    s = torch.amp.GradScaler()\n", "--amp", "train.py:10 makes"),
        ("device = 'cpu'\nwith torch.autocast(device): pass\n", "--device=cuda", "train.py:3 enters"),
        (OPTIONS + "c = torch.autocast('cuda') if args.amp else nullcontext()\n", "--amp --map cpu", "train.py:9"),
        # Defaults of parameters and of fields, where what is assigned comes from itself.
        (ON_CUDA + "Trainer(model)\n", "", "train.py:5 makes"),
        (ON_CUDA.replace("self.device = ", "self.device, self.lr = ").replace("device(device)", "device(device), 1")
         + "Trainer(model)\n", "", "train.py:5 makes"),
        (ON_CUDA.replace("torch.device(device)", "torch.device(device) if isinstance(device, str) else device")
         + "Trainer(model)\n", "", "train.py:5 makes"),
        ("def f(device='cuda'):\n    device = torch.device(device)\n    with torch.autocast(device.type): pass\nf()\n",
         "", "train.py:4 enters"),
        (ON_CPU + "Trainer(model, 'cuda')\n", "", "train.py:5 makes"),
        (GIVEN + OPTIONS + "Trainer(model, args.device)\n", "", "train.py:5 makes"),
        (CONFIG.format("'cuda'") + CONFIGURED + "Trainer(model, Config(0.2))\n", "", "train.py:10 makes"),
        (CONFIG.format("field(default='cuda')") + CONFIGURED + "Trainer(model, Config())\n", "", "train.py:10 makes"),
        # Pure half on a GPU.
        ("model = torch.nn.Linear(2, 2).cuda().half()\n", "", "train.py:2 calls .half()"),
        (DEVICE + "model = torch.nn.Linear(2, 2).to(device, torch.bfloat16)\n", "", "casts to torch.bfloat16"),
        (DEVICE + "p = MixedPrecisionPolicy(param_dtype=torch.bfloat16)\n", "", "makes a MixedPrecisionPolicy"),
        # Names that are assigned, and AMP that is passed on.
        ("try:\n    autocast = torch.cuda.amp.autocast\nexcept AttributeError: pass\nwith autocast(): pass\n", "",
         "train.py:5 enters torch.cuda.amp.autocast"),
        (OWN + "Own(half=True)\n", "", "train.py:4 calls Accelerator("),
        ("from denoising import Trainer\nTrainer(amp=True)\n", "", "calls Trainer(amp=True"),
        # Trainers.
        ("from transformers import TrainingArguments\na = TrainingArguments('out', fp16=True)\n", "",
         "calls TrainingArguments(fp16=True"),
        ("a = SFTConfig(bf16=torch.cuda.is_available())\n", "", "calls SFTConfig(bf16="),
        (OPTIONS + "a = Accelerator(mixed_precision=args.mixed_precision)\n", "--mixed-precision fp16",
         "calls Accelerator(mixed_precision="),
        ("import lightning as L\nt = L.Trainer(precision='16-mixed')\n", "", "calls Trainer(precision="),
        ("from lightning.fabric import Fabric\nf = Fabric(accelerator='auto', precision='bf16-mixed')\n", "",
         "calls Fabric(precision="),
        ("parser = HfArgumentParser(TrainingArguments)\n", "--output_dir out --fp16", "it is given --fp16"),
        ("model = create_model(fp16)\n", "--use_fp16 True", "it is given --use_fp16"),
        ("cli = LightningCLI()\n", "fit --trainer.precision=16-mixed", "it is given --precision"),
    ],
)  # fmt: skip
def test_amp_for_cuda_is_found(tmp_path: Path, code: str, arguments: str, words: str) -> None:
    assert words in where(tmp_path, code, *arguments.split())


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("model = torch.nn.Linear(2, 2)\n", ""),
        (DEVICE + "model = torch.nn.Linear(2, 2).to(device)\n", ""),
        ("with torch.autocast('cpu', dtype=torch.bfloat16): pass\n", ""),
        ("torch.cuda.manual_seed_all(0)\nwith torch.autocast(device_type='cpu', dtype=torch.bfloat16): pass\n", ""),
        ("device = 'cpu'\nwith torch.autocast(device): pass\ns = torch.amp.GradScaler(device)\n", ""),
        ("def f(device):\n    with torch.autocast(device): pass\nf('cpu')\n", ""),
        ("model = torch.nn.Linear(2, 2).half()\n", ""),
        (OWN + "Own()\n", ""),
        # On the CPU by default, or because it is passed.
        (SEEDED + ON_CPU + "Trainer(model)\n", ""),
        (SEEDED + ON_CPU.replace("torch.device(device)", "torch.device(device) if isinstance(device, str) else device")
         + "Trainer(model)\n", ""),
        (SEEDED + ON_CUDA + "Trainer(model, 'cpu')\n", ""),
        (SEEDED + ON_CUDA + "Trainer(model, device=torch.device('cpu'))\n", ""),
        (SEEDED + GIVEN + OPTIONS.replace("'cuda'", "'cpu'") + "Trainer(model, args.device)\n", ""),
        (SEEDED + CONFIG.format("'cpu'") + CONFIGURED + "Trainer(model, Config(0.2))\n", ""),
        (SEEDED + CONFIG.format("field(default='cpu')") + CONFIGURED + "Trainer(model, Config())\n", ""),
        (SEEDED + CONFIG.format("'cuda'") + CONFIGURED + "Trainer(model, Config(0.2, 'cpu'))\n", ""),
        (SEEDED + CONFIG.format("'cuda'") + CONFIGURED + "Trainer(model, Config(device='cpu'))\n", ""),
        # In circles, and of kinds that do not fit.
        ("device = other\nother = device + 1\nwith torch.autocast(other): pass\n", ""),
        ("import os\nwith torch.autocast(os.environ.get(3, [])): pass\n", ""),
        ("with torch.autocast('cuda', enabled=False): pass\n", ""),
        (OPTIONS + "with torch.autocast(args.device, enabled=args.amp): pass\n", ""),
        (OPTIONS + "if args.amp:\n    s = torch.amp.GradScaler()\n", ""),
        (OPTIONS + "use = args.amp and torch.cuda.is_available()\ns = torch.amp.GradScaler(enabled=use)\n", ""),
        (OPTIONS + "a = Accelerator(mixed_precision=args.mixed_precision)\n", ""),
        (OPTIONS + "with torch.autocast('cpu', enabled=args.amp): pass\n", "--amp"),
        (OPTIONS + "c = torch.autocast('cuda') if args.amp else nullcontext()\n", ""),
        (OPTIONS + "device = args.device\nc = nullcontext() if device == 'cuda' else torch.autocast('cuda')\n", "--amp"),
        # Whoever asks for the CPU gets it.
        (OPTIONS + "with torch.autocast(args.device): pass\n", "--device cpu"),
        (OPTIONS + "with torch.autocast(args.device): pass\n", "--device=cpu"),
        (OPTIONS + "with torch.autocast('cuda', enabled=not args.no_cuda): pass\n", "--no-cuda"),
        ("a = TrainingArguments('out', bf16=True, use_cpu=True)\n", ""),
        ("a = Accelerator(mixed_precision='bf16', cpu=True)\n", "--mixed_precision bf16"),
        ("t = Trainer(accelerator='cpu', precision='bf16-mixed')\n", "--bf16"),
        ("t = Trainer(precision='32-true')\n", ""),
        ("a = TrainingArguments('out', fp16=False)\n", ""),
        ("from sklearn.preprocessing import StandardScaler\nscaler = StandardScaler()\nautocast = 1\n", ""),
        ("this is no Python, autocast('cuda')\n", ""),
    ],
)  # fmt: skip
def test_what_is_no_amp_or_not_for_cuda_is_left(tmp_path: Path, code: str, arguments: str) -> None:
    assert where(tmp_path, code, *arguments.split()) == ""


def test_the_environment_counts(tmp_path: Path) -> None:
    code = "accelerator = Accelerator()\n"
    assert where(tmp_path, code) == ""
    assert "MIXED_PRECISION is fp16" in where(tmp_path, code, ACCELERATE_MIXED_PRECISION="fp16")
    launched = {"ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_USE_CPU": "true"}
    assert where(tmp_path, code, **launched) == ""


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", '{"fp16": true}'), ("a.yaml", "trainer:\n  precision: 16-mixed\n")]
)
def test_files_of_settings_count(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert where(tmp_path, "x = 1\n", "--config", str(tmp_path / name)) == f"{name} asks for it"


def test_modules_of_the_project_count(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("from .step import step\n")
    (tmp_path / "engine" / "step.py").write_text("import torch\ndef step():\n    with torch.autocast('cuda'): pass\n")
    assert where(tmp_path, "from engine import step\n") == "step.py:3 enters torch.autocast"
    assert cuda_amp(str(tmp_path / "engine" / "__init__.py"), [], {}) == "step.py:3 enters torch.autocast"
    assert cuda_amp(None, [], {}) == ""


def test_a_project_is_found_from_its_directory_and_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine.py").write_text("import torch\nscaler = torch.cuda.amp.GradScaler()\n")
    (tmp_path / "scripts").mkdir()
    where(tmp_path / "scripts", "import engine\n")
    script = str(tmp_path / "scripts" / "train.py")
    assert cuda_amp(script, [], {}) == ""
    assert (
        cuda_amp(script, [], {"PYTHONPATH": f"/nowhere:{tmp_path}"}) == "engine.py:2 makes a torch.cuda.amp.GradScaler"
    )
    monkeypatch.chdir(tmp_path)
    assert cuda_amp("scripts/train.py", [], {}) == "engine.py:2 makes a torch.cuda.amp.GradScaler"


def test_our_own_clients() -> None:
    home = ROOT / "fixtures" / "clients"
    found = {file.stem for file in home.glob("*.py") if cuda_amp(str(file), [], {})}
    assert found == {"cuda_ddp", "cuda_gpt"}
