"""A router in front of vLLM servers whose KV is in Larder: `python -m kvlarder.router`.

Each request goes to the server that answers it soonest, by what Larder says that this server can load, how fast it
computes the rest, and what waits there already.  Importing this package imports no HTTP library and connects to nothing.
docs/engines/router.md has the options, the metrics and the limits.
"""
