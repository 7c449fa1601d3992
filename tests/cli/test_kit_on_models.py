"""The whole troubleshooting kit on models of transformers that nobody prepared for it."""

import json
from pathlib import Path

import pytest

from cli.calling import Python
from conftest import Finished

pytestmark = pytest.mark.heavy

TRAIN = """
import sys

import torch
import transformers as t

torch.manual_seed(0)
sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
batches = [{"input_ids": torch.randint(128, (2, n))} for n in (8, 12)]
if sys.argv[1] == "llama":
    model = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=128, num_key_value_heads=2, **sizes))
elif sys.argv[1] == "bert":
    model = t.BertForMaskedLM(t.BertConfig(vocab_size=128, **sizes))
else:
    model = t.ViTForImageClassification(t.ViTConfig(patch_size=8, image_size=32, **sizes))
    batches = [{"pixel_values": torch.randn(n, 3, 32, 32)} for n in (2, 3)]
model.eval()  # no dropout: the losses of two runs are the same
model.compile(backend=sys.argv[2])
for batch in batches:
    loss = model(**batch).logits.square().mean()
    loss.backward()
    print(f"{loss.item():.8f}")
"""


@pytest.mark.parametrize("name", ["llama", "bert", "vit"])
def test_the_kit(name: str, run_warm: Python, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN, "utf-8")

    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}  # empty, so that the profile is of a whole compile

    def kit(*words: str, backend: str = "aot_eager") -> Finished:
        at = words.index("train.py") + 1 if "train.py" in words else len(words)
        program = (name, backend) if "train.py" in words else ()
        return run_warm("-m", "graphprobe", *words[:at], *program, *words[at:], cwd=tmp_path, env=cache)

    plain = run_warm("train.py", name, "aot_eager", cwd=tmp_path)
    assert plain.code == 0 and len(plain.out.split()) == 2

    explained = kit("explain", "train.py")
    assert explained.code == 0, explained.out
    assert " 0 graph breaks, 0 functions not compiled" in explained.out

    again = kit("recompiles", "--json", "again.json", "train.py")
    assert again.code == 1, again.err
    groups = json.loads((tmp_path / "again.json").read_text("utf-8"))["groups"]
    assert {group["kind"] for group in groups} == {"size-changed"}

    profiled = kit("profile", "-o", "p.json", "train.py", backend="inductor")
    assert profiled.code == 0
    assert profiled.out == run_warm("train.py", name, "inductor", cwd=tmp_path).out
    document = json.loads(kit("profile", "--json", "p.json").out)
    assert {"bytecode_tracing", "GraphLowering.run"} <= {row["name"] for row in document["phases"]}

    observed = kit("run", "-q", "--record-frames", "--logs", "dynamo=info,+recompiles", "--out", "runs", "train.py")
    assert observed.code == 0 and observed.out == plain.out
    assert kit("logs", "runs").code == 0
    assert "recompile" in kit("logs", "runs", "--component", "recompiles").out.lower()
    assert kit("explain", "runs").code == 0
    assert kit("recompiles", "runs").code == 1
    assert kit("replay", "runs").code == 2, "nothing failed, so nothing was recorded"

    filtered = kit("run", "-q", "--only-function", "*Attention*", "--out", "some", "train.py")
    assert filtered.code == 0 and filtered.out == plain.out
