"""Larder as a tier of vLLM's own offloading: kvlarder.vllm.LarderTier.  Importing this package imports no vLLM."""
