#!/usr/bin/env python3
"""A chat that goes on after its process was killed: the example of docs/engines/huggingface.md.

hf_chat.py MODEL HISTORY [--socket-dir DIR] [--tokens N]
Answers the questions on standard input, one a line, and keeps the chat in HISTORY, a file of token ids.
"""

import argparse
import pathlib
import sys
import time

import kvlarder.hf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("history", type=pathlib.Path)
    parser.add_argument("--socket-dir", default="")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    with kvlarder.hf.PrefixStore(model, socket_dir=arguments.socket_dir) as store:
        for question in sys.stdin:
            history = [int(token) for token in arguments.history.read_text().split()] if arguments.history.exists() else []
            turn = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
            ids = torch.tensor([history + list(turn["input_ids"])])
            begun = time.perf_counter()
            cache, known = store.restore(ids)
            print(f"{known} of {ids.shape[1]} tokens restored in {time.perf_counter() - begun:.3f} s", flush=True)
            out = model.generate(ids, past_key_values=cache, max_new_tokens=arguments.tokens, do_sample=False)[0]
            store.save(cache, out)
            arguments.history.write_text(" ".join(map(str, out.tolist())))
            print(tokenizer.decode(out[ids.shape[1] :], skip_special_tokens=True).replace("\n", " "), flush=True)


if __name__ == "__main__":
    main()
