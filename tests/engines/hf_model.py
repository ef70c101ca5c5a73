#!/usr/bin/env python3
"""Makes the Hugging Face directories of the tests: the quickstart's model in bf16, and a small random one.

hf_model.py FETCH FOLDER   writes FOLDER/smol and FOLDER/tiny, unless they are there; FETCH prints the path of the
quickstart's model (deploy/fetch-model.sh).  Needs torch and transformers.
"""

import os
import pathlib
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"


def smol(gguf, folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, name = os.path.split(os.path.abspath(gguf))
    dequantized = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    config = dequantized.config.to_dict()
    config.pop("quantization_config", None)
    config["dtype"] = "bfloat16"
    model = AutoModelForCausalLM.from_config(type(dequantized.config)(**config)).to(torch.bfloat16)
    model.load_state_dict(dequantized.state_dict())
    model.tie_weights()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(folder)


def tiny(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True, dtype="bfloat16",
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def make(gguf, folder):
    """Returns the folders of both models."""
    folder = pathlib.Path(folder)
    for name, write in (("smol", lambda path: smol(gguf, path)), ("tiny", tiny)):
        if not (folder / name).is_dir():
            unfinished = folder / f".{name}.{os.getpid()}"
            write(unfinished)
            os.rename(unfinished, folder / name)
    return folder / "smol", folder / "tiny"


if __name__ == "__main__":
    os.makedirs(sys.argv[2], exist_ok=True)
    make(subprocess.run([sys.argv[1]], check=True, stdout=subprocess.PIPE, text=True).stdout.strip(), sys.argv[2])
