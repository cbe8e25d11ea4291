"""The commands of queries by filter, of lists and of paths as tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import callboard as cb

if TYPE_CHECKING:
    from driver import Command

LIMIT = 20.0

COMPARISONS = {"lt": cb.Less, "le": cb.LessEqual, "gt": cb.Greater, "ge": cb.GreaterEqual}


class Raw:
    """An operator by its number, on whatever name."""

    def __init__(self, rest: str) -> None:
        number, rest = rest.split(":", 1)
        name, has, value = rest.partition(":")
        self.all = int(number), name, tuple(value.split(",")) if has else ()

    def _predicate(self) -> tuple[int, str, tuple[str, ...]]:
        return self.all


class Result:
    """A plain value, which is given back by forgetting it."""

    def __init__(self, attributes: tuple[str, ...]) -> None:
        self.attributes = attributes

    def release(self) -> None:
        self.attributes = ()


def filters(words: list[str]) -> tuple[list[Any], Any]:
    """has:name prefix:/path in:/path,… op:name:value,… and the names of only:name,…"""
    found: list[Any] = []
    only = None
    for word in words:
        op, _, rest = word.partition(":")
        name, _, value = rest.partition(":")
        if op == "has":
            found.append(cb.Has(name))
        elif op == "prefix" and rest.startswith("/"):
            found.append(cb.PathPrefix(rest))
        elif op == "in":
            found.append(cb.PathIn(rest.split(",")) if rest.startswith("/") else cb.In(name, value.split(",")))
        elif op == "contains":
            found.append(cb.Contains(name, value.split(",")))
        elif op in COMPARISONS:
            found.append(COMPARISONS[op](name, value))
        elif op == "only":
            only = rest.split(",")
        elif op == "raw":
            found.append(Raw(rest))
        else:
            raise ValueError(f"no filter {word!r}")
    return found, only


def join(values: Any) -> str:
    return ",".join(str(v) for v in values)


class Finding:
    """Verbs of Driver."""

    stage: Any
    handles: dict[str, Any]

    def keep(self, name: str, made: Any) -> None:
        """The name may have been another's, which is given back."""
        before, self.handles[name] = self.handles.get(name), made
        if before is not None and not getattr(before, "released", False):
            before.release()

    def found(self, query: cb.Query) -> str:
        names = ",".join(a.replace("%", "%25").replace(",", "%2C") for a in query.attributes)
        return f"size={len(query)} attributes={names} prims={join(query.prims)}"

    def do_find(self, c: Command) -> str:
        wanted, only = filters(c.args[1:])
        query = self.stage.query(
            *wanted, attributes=only, sealed="sealed" in c.opt, wait="async" not in c.opt, timeout=LIMIT
        )
        self.keep(c.args[0], query)
        if "async" in c.opt:
            return f"size={len(query)}"
        if "result" in c.opt:
            self.handles[c.opt["result"]] = Result(query.attributes)
        return self.found(query)

    def do_await(self, c: Command) -> str:
        query = self.handles[c.args[0]]
        query.wait(0 if "timeout" in c.opt else LIMIT)
        return self.found(query)

    def number_of(self, name: str) -> int:
        """The list's number, as an int that owns nothing; "none" is no list."""
        return 0 if name == "none" else int(self.handles[name])

    def do_list(self, c: Command) -> str:
        made = self.stage.paths.list([int(n, 0) for n in c.args[1:]])
        self.keep(c.args[0], made)
        return f"number={made}"

    def do_listed(self, c: Command) -> str:
        number = self.number_of(c.args[0])
        return f"number={number} count={self.stage.paths.count(number)} ids={join(self.stage.paths.ids(number))}"

    def do_retain(self, c: Command) -> str:
        self.stage.paths.add_reference(self.number_of(c.args[0]))
        return ""

    def do_unlist(self, c: Command) -> str:
        self.stage.paths.release(self.number_of(c.args[0]))
        return ""

    def do_slice(self, c: Command) -> str:
        made = self.stage.paths.slice(self.number_of(c.args[1]), c.number("first"), c.number("n"))
        self.keep(c.args[0], made)
        return f"number={made}"

    def do_querylist(self, c: Command) -> str:
        query = self.stage.query_from_path_list(self.number_of(c.args[1]))
        self.keep(c.args[0], query)
        return f"size={len(query)} prims={join(query.prims)}"

    def do_join(self, c: Command) -> str:
        return f"path={self.stage.paths.from_tokens([int(n, 0) for n in c.args])}"

    def do_split(self, c: Command) -> str:
        tokens = self.stage.paths.to_tokens(int(c.args[0], 0))
        return f"count={len(tokens)} tokens={join(tokens)}"
