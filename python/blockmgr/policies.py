"""The stages of eviction policies, as functions.

    from blockmgr import policies as p
    policy = p.snapkv(window=64) | p.adakv(alpha=0.3) | p.topk()

is Policy('snapkv(window=64) | adakv(alpha=0.3) | topk'). A policy needs a scorer;
the budget is uniform and the selector topk unless they are said. There is a
function for every scorer, budget and selector (STAGES has their fields and
defaults), and for the options protect(sinks, recent) and round(unit). The function
of the budget global is global_, because global is a word of the language.
docs/eviction.md says what they do.
"""
import keyword
import typing

from blockmgr import _core

Value = typing.Union[int, float, bool, str]

#: {scorer | budget | selector: {name: {field: default}}}
STAGES = _core.stages()


class Stages:
    """One stage or option of a policy, or several, joined by |."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __or__(self, other: "Stages") -> "Stages":
        if not isinstance(other, Stages):
            return NotImplemented
        return Stages(f"{self._text} | {other._text}")

    def policy(self) -> _core.Policy:
        """The policy, parsed."""
        return _core.Policy(self)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Stages('{self._text}')"


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _call(name: str, fields: typing.Dict[str, Value]) -> Stages:
    if not fields:
        return Stages(name)
    pairs = ",".join(f"{key}={_text(value)}" for key, value in fields.items())
    return Stages(f"{name}({pairs})")


def protect(**fields: int) -> Stages:
    """Entries that are never evicted: the first sinks, the last recent."""
    return _call("protect", dict(fields))


def round(unit: str) -> Stages:  # pylint: disable=redefined-builtin
    """Whether budgets are whole pages ("page", the default) or "token"s."""
    return Stages(f"round({unit})")


def _stage(kind: str, name: str) -> typing.Callable[..., Stages]:
    fields = STAGES[kind][name]

    def stage(**values: Value) -> Stages:
        for key in values:
            if key not in fields:
                known = ", ".join(fields) or "none"
                raise TypeError(f"{name}: there is no field '{key}', only: {known}")
        return _call(name, values)

    stage.__name__ = stage.__qualname__ = name
    defaults = ", ".join(f"{key}={value!r}" for key, value in fields.items())
    stage.__doc__ = f"The {kind} {name}({defaults})."
    return stage


_FUNCTIONS = {name: _stage(kind, name) for kind in ("budget", "selector", "scorer")
              for name in STAGES[kind]}


def __getattr__(name: str) -> typing.Callable[..., Stages]:
    stage = name.removesuffix("_")
    if stage in _FUNCTIONS:
        return _FUNCTIONS[stage]
    raise AttributeError(f"blockmgr.policies: there is no stage '{name}'")


def __dir__() -> typing.List[str]:
    return sorted([*globals(), *(f"{name}_" if keyword.iskeyword(name) else name
                                 for name in _FUNCTIONS)])
