"""The bundle: the modules of the console as one script, which a node makes of them when it first sends it.

A browser reads one file where it would read each module, and what modules have in common is compressed once.
Each module becomes a function that returns what it exports; modules run in the order of their imports.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from vox_mesh.http.console.compaction import code_of, compact_script

_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "([^"]+)";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (default )?((?:async )?function|class|const) (\w+)", re.MULTILINE)
_OTHER: Final = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
_WORD: Final = re.compile(r"(?<![.\w$])[A-Za-z_$][\w$]*")
_LAZY: Final = re.compile(r'\bimport\("([^"]+)"\)')


class _Module(NamedTuple):
    name: str
    imports: dict[str, tuple[str, str]]
    """By the name in the module: the other module, and the name there."""
    exports: tuple[str, ...]
    default: str | None
    body: str
    code: str
    """What is code in the body."""


def bundle(modules: Mapping[str, str], entry: str) -> str:
    """Return one module that does what these do, by their paths. Files that are not among them are imported.

    Raises `ValueError` where a module imports or exports in another way than the others, or in a circle.
    """
    parsed = {name: _parse(name, source) for name, source in modules.items()}
    order = list(_in_order(parsed, entry))
    names = _global_names(order)
    lines = [*_imports_of_files(order, parsed)]
    lines += [_as_function(module, parsed, names) for module in order]
    return "\n".join(lines) + "\n"


def _parse(name: str, source: str) -> _Module:
    imports = {
        local: (_resolve(name, path), imported)
        for clause, path in _IMPORT.findall(source)
        for imported, local in _names_of(clause)
    }
    found = _EXPORT.findall(source)
    body = _EXPORT.sub(r"\2 \3", _IMPORT.sub("", source))
    if other := _OTHER.search(body):
        raise ValueError(f"module of the console must import and export names, got {other[0]!r} in {name}")
    default = next((each for is_default, _, each in found if is_default), None)
    return _Module(
        name, imports, tuple(each for _, _, each in found), default, compact_script(body), code_of(body)
    )


def _names_of(clause: str) -> Iterator[tuple[str, str]]:
    """Yield each imported name, and the name that it has in the module."""
    for each in filter(None, map(str.strip, clause.split(","))):
        imported, _, local = each.partition(" as ")
        yield imported, local or imported


def _resolve(name: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


def _in_order(modules: Mapping[str, _Module], entry: str) -> Iterator[_Module]:
    """Yield each module after its imports; the entry is the last one."""
    done: dict[str, bool] = {}

    def visit(name: str) -> Iterator[_Module]:
        if name in done:
            if not done[name]:
                raise ValueError(f"modules of the console must not import each other, got {name}")
            return
        done[name] = False
        for other, _ in modules[name].imports.values():
            if other in modules:
                yield from visit(other)
        done[name] = True
        yield modules[name]

    for name in sorted(modules, key=lambda each: (each == entry, each)):
        yield from visit(name)


def _global_names(modules: list[_Module]) -> dict[tuple[str, str], str]:
    """Return the name in the bundle of each export, by module and name.

    It is its own name, unless another module has the word without importing it: that may be a variable, or a
    name that browsers know.
    """
    owners = defaultdict[str, set[str]](set)
    for module in modules:
        for word in _WORD.findall(module.code):
            owner, imported = module.imports.get(word, (module.name, word))
            owners[word].add(owner if imported == word else module.name)
    return {
        (module.name, export): export if owners[export] <= {module.name} else f"{export}${number}"
        for number, module in enumerate(modules)
        for export in module.exports
    }


def _imports_of_files(order: list[_Module], modules: Mapping[str, _Module]) -> Iterator[str]:
    """Yield the import of each file that is not in the bundle."""
    files: dict[str, set[str]] = {}
    for module in order:
        for other, imported in module.imports.values():
            if other not in modules:
                files.setdefault(other, set()).add(imported)
    for path, names in sorted(files.items()):
        yield f'import{{{",".join(sorted(names))}}}from"./{path}";'


def _as_function(
    module: _Module, modules: Mapping[str, _Module], names: Mapping[tuple[str, str], str]
) -> str:
    aliases = [
        f"{local}={outer}"
        for local, (other, imported) in module.imports.items()
        if (outer := names.get((other, imported), imported)) != local
    ]
    renamed = (f"let {','.join(aliases)};" if aliases else "") + _LAZY.sub(
        lambda found: _lazy_import(_resolve(module.name, found[1]), modules, names), module.body.strip()
    )
    if not module.exports:
        return f"(()=>{{{renamed}}})();"
    outer_names = [
        each if each == names[module.name, each] else f"{each}:{names[module.name, each]}"
        for each in module.exports
    ]
    return f"let{{{','.join(outer_names)}}}=(()=>{{{renamed}\nreturn{{{','.join(module.exports)}}}}})();"


def _lazy_import(path: str, modules: Mapping[str, _Module], names: Mapping[tuple[str, str], str]) -> str:
    """Return the import of a file; a module of the bundle is there already."""
    module = modules.get(path)
    if module is None:
        return f'import("./{path}")'
    if module.default is None:
        raise ValueError(
            f"module of the console that is imported late must have a default export, got {path}"
        )
    return f"Promise.resolve({{default:{names[path, module.default]}}})"
