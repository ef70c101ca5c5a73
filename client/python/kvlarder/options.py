"""Options that an engine's configuration gives to its adapter: a frozen dataclass whose fields are made by `option`.

Thread-safety: pure functions.
"""

import dataclasses
import difflib

KINDS = {bool: "true or false", str: "a string", int: "a whole number", float: "a number"}


def option(default, *, least=None, most=None, one_of=None, by_rank=False, doc=""):
    """Returns a field.  Its type is that of its default; doc: what the table of options says of it; by_rank: its value may
    also be a list, with one value for each rank, which becomes a tuple."""
    return dataclasses.field(
        default=default, metadata={"least": least, "most": most, "one_of": one_of, "by_rank": by_rank, "doc": doc}
    )


def read(options, values, where):
    """Returns an instance of the dataclass `options` with these values.  Raises ValueError, which names `where`, the key,
    and what would be right."""
    fields = {field.name: field for field in dataclasses.fields(options)}
    checked = {}
    for key, value in (values or {}).items():
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.5)
            hint = f"did you mean '{close[0]}'?" if close else "options are " + ", ".join(sorted(fields))
            raise ValueError(f"{where} has no option '{key}': {hint}")
        if fields[key].metadata["by_rank"] and isinstance(value, list) and value:
            checked[key] = tuple(_checked(key, one, fields[key], where) for one in value)
        else:
            checked[key] = _checked(key, value, fields[key], where)
    return options(**checked)


def _checked(key, value, field, where):
    kind, limits = type(field.default), field.metadata
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ValueError(f"{where}: {key} must be {KINDS[kind]}, not {value!r}")
    if limits["one_of"] is not None and value not in limits["one_of"]:
        raise ValueError(f"{where}: {key} must be one of {', '.join(limits['one_of'])}, not '{value}'")
    if limits["least"] is not None and not limits["least"] <= value <= limits["most"]:
        raise ValueError(f"{where}: {key} must be {limits['least']} to {limits['most']}, not {value}")
    return value
