"""Whether a class of an engine, which an adapter of Larder inherits from, has the methods that the adapter was written for.

Thread-safety: pure functions.
"""

import inspect


def problems(base, expected):
    """Yields what of a class is not as expected.  expected: {method: its parameters without self} of those that the adapter
    overrides; an abstract method that is not among them is a problem, too."""
    for name, parameters in expected.items():
        if inspect.getattr_static(base, name, None) is None:
            yield f"has no {name}"
            continue
        found = tuple(inspect.signature(getattr(base, name)).parameters)
        found = found[1:] if found[:1] == ("self",) else found
        if found != parameters:
            yield f"{name} takes ({', '.join(found)}), not ({', '.join(parameters)})"
    for name in sorted(getattr(base, "__abstractmethods__", ())):
        if name not in expected:
            yield f"requires {name}, which is not known"


def check(base, expected, adapter, engine, tested):
    """Raises ImportError, which names each problem, the adapter, the engine with its version, and the versions tested."""
    if found := list(problems(base, expected)):
        raise ImportError(f"{adapter} does not fit {engine}: its {base.__name__} {'; '.join(found)}. It was tested with {tested}")
