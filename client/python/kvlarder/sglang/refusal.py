"""Refusing an engine that the storage does not serve."""


class Refused(ValueError):
    """The storage does not serve this engine.  The text says why, and what helps."""


def refuse(why, helps):
    """helps: a flag of SGLang, or what to do."""
    raise Refused(f"Larder cannot serve this engine, because {why}; {'use ' if helps.startswith('--') else ''}{helps}")
