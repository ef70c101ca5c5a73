#!/usr/bin/env python3
"""Restores the cache of a Hugging Face model on a GPU, against computing it; and both at once over an emulated link.

hf_gpu.py LARDERD [--device cpu] [--cache dynamic] [--tokens N] [--chunk N] [--rounds N] [--json FILE]
In a Python with torch, transformers and kvlarder.

The model has the shape of Llama-3-8B and random weights (on a CPU: two layers of 256).
  restore / compute   PrefixStore.restore from the pool; floor: the faster of one forward and of steps of --chunk tokens
  both / better       PrefixStore.prefill over a link on which loading takes as long as computing; floor: the better of
                      computing and of the bytes at the link's rate
  save                PrefixStore.save, in bytes/s
Ours and the floor take turns; a ratio is of medians.  It fails if a byte of the cache, or a logit of the next token, is not
what was computed.
"""

import argparse
import json
import os
import statistics
import sys
import time

import kvlarder.hf
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "client", "python"))

from larderd import Larderd  # noqa: E402

WARM = 2
SHAPES = {
    "cuda": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128_256, "rope_theta": 500_000.0,
    },
    "cpu": {
        "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 1_000,
    },
}  # fmt: skip


class Bench:
    def __init__(self, args, socket_dir):
        self.args = args
        torch.manual_seed(0)
        config = LlamaConfig(**SHAPES[args.device], max_position_embeddings=args.tokens + 64, tie_word_embeddings=False)
        with torch.device(args.device):
            self.model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).eval()
            self.ids = torch.randint(config.vocab_size, (1, args.tokens + 1))
        self.store = self.opened(socket_dir)
        self.socket_dir = socket_dir
        self.cache = self.static = StaticCache(config=config, max_cache_len=args.tokens + 64)
        self.bytes = 0

    def opened(self, socket_dir, link=0.0):
        return kvlarder.hf.PrefixStore(
            self.model, name="bench", revision="random", socket_dir=socket_dir, link_bytes_per_s=link
        )

    def timed(self, call):
        self.synchronize()
        begun = time.perf_counter()
        result = call()
        self.synchronize()
        return time.perf_counter() - begun, result

    def clear(self):
        """Makes the cache an empty one."""
        if self.args.cache == "dynamic":
            self.cache = DynamicCache()
        else:
            self.static.reset()

    def synchronize(self):
        if self.args.device == "cuda":
            torch.cuda.synchronize()

    def compute(self, chunk, first=0):
        """Computes all tokens but the last of `ids` into the cache, from `first` on."""
        with torch.no_grad():
            for begin in range(first, self.args.tokens, chunk):
                end = min(begin + chunk, self.args.tokens)
                self.model(self.ids[:, begin:end], past_key_values=self.cache, logits_to_keep=1)

    def logits(self):
        with torch.no_grad():
            return self.model(self.ids[:, -1:], past_key_values=self.cache).logits.float().cpu()

    def contents(self):
        return [
            tensor[:, :, : self.args.tokens].clone() for layer in self.cache.layers for tensor in (layer.keys, layer.values)
        ]

    def check(self, what, right, logits=None, first=0, last=None):
        wrong = sum(
            not torch.equal(mine[:, :, first:last], theirs[:, :, first:last]) for mine, theirs in zip(self.contents(), right)
        )
        if wrong:
            sys.exit(f"{what}: {wrong} of {len(right)} tensors have other bytes")
        if logits is not None and not torch.equal(self.logits(), logits):
            sys.exit(f"{what}: other logits")

    def run(self):
        args, times = self.args, {}

        def add(name, call):
            self.clear()
            took, result = self.timed(call)
            times.setdefault(name, []).append(took)
            return result

        for _ in range(WARM):
            for chunk in (args.tokens, args.chunk):
                self.clear()
                self.compute(chunk)
        right = self.contents()  # of steps of `chunk`
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in right)
        save_s, saved = self.timed(lambda: self.store.save(self.cache, self.ids[:, : args.tokens]))
        if saved != args.tokens:
            sys.exit(f"only {saved} of {args.tokens} tokens were saved")
        logits = self.logits()
        print(f"{torch.cuda.get_device_name() if args.device == 'cuda' else 'CPU'}, torch {torch.__version__}, {args.cache} cache: {self.bytes} bytes; "
              f"saved at {self.bytes / save_s / 1e9:.1f} GB/s (the first time)")  # fmt: skip

        for round_ in range(WARM + args.rounds):
            if round_ == WARM:
                print("while warming up: restore", *(f"{t:.4f}" for t in times["restore"]), "s")
                times.clear()
            add("one forward", lambda: self.compute(args.tokens))
            add("steps", lambda: self.compute(args.chunk))
            _, known = add("restore", lambda: self.store.restore(self.ids, self.cache))
            if known != args.tokens:
                sys.exit(f"only {known} of {args.tokens} tokens were restored")
            self.check("restore", right, logits)
        compute_s = min(statistics.median(times["one forward"]), statistics.median(times["steps"]))
        restore_s = statistics.median(times["restore"])

        link = self.bytes / compute_s
        linked = self.opened(self.socket_dir, link)
        times = {}
        for round_ in range(WARM + args.rounds):
            if round_ == WARM:
                times.clear()
            add("one forward", lambda: self.compute(args.tokens))
            add("steps", lambda: self.compute(args.chunk))
            _, what = add("both", lambda: linked.prefill(self.ids, self.cache, chunk_tokens=args.chunk))
            loaded_from = args.tokens - what.loaded_tokens
            self.check("prefill, what was loaded", right, first=loaded_from)
            # Computed in the same steps as what was saved, but for the last, which met the loads.
            self.check("prefill, what was computed", right, last=loaded_from // args.chunk * args.chunk)
        better_s = min(self.bytes / link, statistics.median(times["one forward"]), statistics.median(times["steps"]))
        both_s = statistics.median(times["both"])
        figures = {
            "hf_restore": restore_s / compute_s, "hf_both": both_s / better_s, "restore_s": restore_s, "both_s": both_s,
            "one_forward_s": statistics.median(times["one forward"]), "steps_s": statistics.median(times["steps"]),
            "link_bytes_per_s": link, "save_bytes_per_s": self.bytes / save_s, "loaded_tokens": what.loaded_tokens,
        }  # fmt: skip
        print(f"one forward {figures['one_forward_s']:.4f} s, steps of {args.chunk} {figures['steps_s']:.4f} s")
        print(f"restore {restore_s:.4f} s = {figures['hf_restore']:.4f} of computing, {self.bytes / restore_s / 1e9:.1f} GB/s")
        print(f"both at once {both_s:.4f} s = {figures['hf_both']:.4f} of the better of computing and of loading at {link / 1e9:.2f} "
              f"GB/s; {what.loaded_tokens} of {args.tokens} tokens loaded")  # fmt: skip
        return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("larderd")
    parser.add_argument("--device", choices=SHAPES, default="cuda")
    parser.add_argument("--cache", choices=("static", "dynamic"), default="static")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.tokens % args.chunk:
        parser.error("--tokens must be a multiple of --chunk")
    daemon = Larderd(args.larderd, "--pool", "4GiB" if args.device == "cuda" else "256MiB")
    try:
        figures = Bench(args, daemon.socket_dir).run()
    finally:
        daemon.end()
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
