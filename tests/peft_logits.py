"""Logits of a model with an adapter in transformers + peft, compared with those in a file of float32.

usage: peft_logits.py MODEL ADAPTER IDS.json LOGITS.f32    exit code 0 = equal, 1 = not, 77 = packages are missing
"""

import json
import os
import sys
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")
try:
    import numpy as np
    import torch
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

model_folder, adapter_folder, ids_file, logits_file = sys.argv[1:]
torch.set_num_threads(1)
try:
    # adapters of an image+text checkpoint name its language model, so load the whole of it
    multimodal = "ForConditionalGeneration" in AutoConfig.from_pretrained(model_folder).architectures[0]
    loader = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
    base = loader.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="eager").eval()
except ValueError as unknown:
    print(f"skipped: this transformers does not know the model: {unknown}")
    sys.exit(77)
with open(ids_file, encoding="utf-8") as file:
    ids = torch.tensor([json.load(file)])


def distance(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


with torch.no_grad():
    without = base(input_ids=ids).logits[0].numpy()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        adapted = PeftModel.from_pretrained(base, adapter_folder).eval()
    expected = adapted(input_ids=ids).logits[0].numpy()
complaints = [str(w.message) for w in said if "adapter" in str(w.message).lower() or "key" in str(w.message).lower()]
found = np.fromfile(logits_file, dtype=np.float32).reshape(expected.shape)
print(f"relative L2 {distance(found, expected):.2e}; the adapter moves the logits by {distance(without, expected):.2e}")
if complaints:
    print("peft complains:", complaints)
sys.exit(not (distance(found, expected) < 3e-5 and distance(without, expected) > 1e-3 and not complaints))
