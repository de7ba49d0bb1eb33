"""Builds the stub libraries that stand in for NVIDIA's under one particular PyTorch.

Turns an installed torch (its `.so` files say which libraries and symbols it wants) into a directory
of shared libraries: one for every NVIDIA library torch needs, plus `libmemgate_phantom.so` with the
device they share, `libmemgate_tracker.so`, which listens to torch's allocator, and
`libmemgate_values.so`, which follows the values of tensors. What each symbol does is in
`symbols.py` and in the C++ of `engines/phantom/native`. Needs a C++ compiler; neither NVIDIA's
headers nor its libraries.

The result can be moved, and taken to other machines: it needs glibc 2.28 or later, and no
libstdc++ but for the last two, which share torch's. It does not install torch or check that a build
works; how the result is loaded is in `memgate_hook.phantom`, where it is kept in `finding.py`
and in `runtimes`.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import memgate_worker
from memgate_worker.hook.memgate_hook.phantom import CORE_NAME
from memgate_worker.standins import symbols
from memgate_worker.standins.compiler import BuildError, compile_cxx, find_compiler
from memgate_worker.standins.elf import read_elf
from memgate_worker.standins.generated import generate_source, version_script
from memgate_worker.standins.imports import Symbol, looked_up_names, read_imports
from memgate_worker.standins.names import NAMES_DIR, known_names
from memgate_worker.standins.torch_build import TorchBuild

__all__ = ["CORE_NAME", "STAMP_NAME", "TRACKER_NAME", "BuildError", "build", "sources_digest"]

NATIVE_DIR = Path(memgate_worker.__file__).parent / "engines" / "phantom" / "native"
TRACKER_NAME = symbols.TRACKER_NAME
STAMP_NAME = "build.sha256"
#: without exceptions and type information: not every machine has what those need of the C++ library
COMPILE = (
    *("-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra", "-fno-exceptions", "-fno-rtti"),
    *("-ffunction-sections", "-fdata-sections", "-fvisibility-inlines-hidden"),
)
#: nothing of the C++ library is asked of the machine, and nothing of it is shown to others
LINK = (
    *("-shared", "-static-libstdc++", "-static-libgcc"),
    *("-Wl,--gc-sections", "-Wl,--exclude-libs,ALL", "-Wl,-z,defs"),
)
#: the library that has dlopen and its kin before glibc 2.34; an empty one is there since
WITH_LIBDL = ("-Wl,--no-as-needed", "-l:libdl.so.2")
NUM_COMPILERS = 2

_LISTENER_SCRIPT = "{ global: memgate_*; local: *; };\n"
_CORE_SCRIPT = """\
{ global: memgate_phantom_*; extern "C++" { memgate::phantom::*; }; local: *; };
"""


def build(torch: TorchBuild, out_dir: Path) -> None:
    """Build every stub that a torch needs.

    Args:
        torch: what they are for.
        out_dir: where the libraries go; made if missing.

    Raises:
        BuildError: the compiler failed.
        StandInsMissingError: there is no compiler.
    """
    # 1. What does torch want, and what may others want?
    wanted = _wanted_symbols(torch)

    # 2. Compile our sources, each once, then link one library per soname.
    tools = _Tools(find_compiler(), out_dir, torch)
    tools.objects_dir.mkdir(parents=True, exist_ok=True)
    objects = _compile_sources(tools)
    _link_core(tools, objects)
    with ThreadPoolExecutor(NUM_COMPILERS) as pool:
        jobs = [
            pool.submit(_build_stub, tools, soname, names, objects)
            for soname, names in wanted.items()
        ]
        for job in jobs:
            job.result()
    _link_aliases(tools)
    _link_instead_for_cufft(tools, objects)

    # 3. What listens to torch is another matter: it is part of torch. The stamp comes last.
    _build_listeners(tools)
    shutil.rmtree(tools.objects_dir)
    (out_dir / STAMP_NAME).write_text(standins_digest(torch))


def standins_digest(torch: TorchBuild) -> str:
    """Digest everything that decides what is built."""
    return hashlib.sha256(f"{sources_digest()} {torch.digest()}".encode()).hexdigest()


@cache
def sources_digest() -> str:
    """Digest the sources of the stand-ins: another digest, other libraries."""
    digest = hashlib.sha256()
    own = Path(__file__).parent
    for source in [
        *(own / f"{name}.py" for name in ("build", "generated", "imports", "symbols")),
        *sorted(NAMES_DIR.glob("*.txt")),
        *sorted(NATIVE_DIR.rglob("*.cpp")),
        *sorted(NATIVE_DIR.rglob("*.h")),
    ]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _wanted_symbols(torch: TorchBuild) -> dict[str, set[Symbol]]:
    """Return the names of each library: those torch wants, and all others that are known.

    Extensions want others than torch. A name that torch asks for only to see whether it exists is
    left out: it would get a refusal where it has another way.
    """
    wanted, optional = read_imports(torch.files)
    for name in looked_up_names(torch.directory):
        soname = "libcuda.so.1" if symbols.library_of(name) == "libcuda" else "libnvidia-ml.so.1"
        wanted[soname].add(Symbol(name, "", False))
    for soname, names in wanted.items():
        listed = known_names(soname.split(".so")[0]) - optional - {symbol.name for symbol in names}
        names.update(Symbol(name, "", False) for name in listed)
    return wanted


@dataclass(frozen=True, slots=True)
class _Tools:
    """What every step needs."""

    compiler: list[str]
    out_dir: Path
    torch: TorchBuild

    @property
    def objects_dir(self) -> Path:
        return self.out_dir / "objects"

    @property
    def macros(self) -> list[str]:
        versions = self.torch.library_versions()
        return [f"-D{name}={value}" for name, value in versions.items()]

    def compile(self, source: Path, output: Path) -> None:
        """Compile one source."""
        options = [*COMPILE, *self.macros]
        compile_cxx(self.compiler, *options, "-c", str(source), "-o", str(output))

    def link(self, output: Path, objects: Iterable[Path], *options: str) -> None:
        """Link a library; its name is also what the loader is to know it by."""
        library, _, version = output.name.partition(".")
        file_name = f"{symbols.FILE_NAMES.get(library, library)}.{version}"
        files = map(str, objects)
        soname = f"-Wl,-soname,{output.name}"
        target = str(output.with_name(file_name))
        compile_cxx(self.compiler, *LINK, *files, soname, *options, "-o", target)


def _compile_sources(tools: _Tools) -> dict[str, Path]:
    """Compile every source of the stand-ins; return the object files by source name."""
    names = {*symbols.CORE_SOURCES, *(name for group in symbols.SOURCES.values() for name in group)}
    names |= {symbols.INSTEAD_SOURCE, symbols.CUFFT_INSTEAD_SOURCE, symbols.RUNTIME_SOURCE}
    objects = {name: tools.objects_dir / f"{name}.o" for name in sorted(names)}
    with ThreadPoolExecutor(NUM_COMPILERS) as pool:
        list(pool.map(lambda name: tools.compile(NATIVE_DIR / name, objects[name]), objects))
    return objects


def _link_core(tools: _Tools, objects: dict[str, Path]) -> None:
    """Link what the stubs share, which offers its functions to them and to Python alone."""
    script = tools.objects_dir / "core.map"
    script.write_text(_CORE_SCRIPT)
    names = (*symbols.CORE_SOURCES, symbols.RUNTIME_SOURCE)
    options = (f"-Wl,--version-script,{script}", *WITH_LIBDL)
    tools.link(tools.out_dir / CORE_NAME, [objects[name] for name in names], *options)


def _build_stub(tools: _Tools, soname: str, wanted: set[Symbol], objects: dict[str, Path]) -> None:
    """Link one stub library from our definitions, generated ones and a version script."""
    library = soname.split(".so")[0]
    own_objects = [objects[name] for name in symbols.SOURCES.get(library, ())]
    defined = {symbol.name for file in own_objects for symbol in read_elf(file).defined}
    modelled = {name for name in defined if symbols.library_of(name) == library}
    same = _per_thread_names(modelled, wanted)
    done = modelled | same.keys()
    source = tools.objects_dir / f"{soname}.cpp"
    generated = [symbol for symbol in sorted(wanted) if symbol.name not in done]
    source.write_text(generate_source(library, generated))
    script = tools.objects_dir / f"{soname}.map"
    script.write_text(version_script(modelled, wanted))
    generated_object = source.with_suffix(".o")
    tools.compile(source, generated_object)
    files = [*own_objects, objects[symbols.RUNTIME_SOURCE], generated_object]
    options = [f"-Wl,--version-script,{script}", f"-L{tools.out_dir}", "-lmemgate_phantom"]
    options += ["-Wl,-rpath,$ORIGIN", *WITH_LIBDL]
    options += [f"-Wl,--defsym,{name}={of}" for name, of in sorted(same.items())]
    tools.link(tools.out_dir / soname, files, *options)
    if library in symbols.INSTEAD_OF:
        (tools.out_dir / symbols.INSTEAD_DIR).mkdir(exist_ok=True)
        instead = tools.out_dir / symbols.INSTEAD_DIR / soname
        tools.link(instead, [objects[symbols.INSTEAD_SOURCE]])


def _per_thread_names(modelled: set[str], wanted: Iterable[Symbol]) -> dict[str, str]:
    """Return other names of our calls: work is done at once here, whatever the stream."""
    found = ((symbol.name, symbols.PER_THREAD.fullmatch(symbol.name)) for symbol in wanted)
    return {name: match[1] for name, match in found if match and match[1] in modelled}


def _link_aliases(tools: _Tools) -> None:
    """Give libraries their other names: for programs that open them, and for those that link."""
    for library, file_name in symbols.FILE_NAMES.items():
        for file in tools.out_dir.glob(f"{file_name}.so.*"):
            (tools.out_dir / file.name.replace(file_name, library, 1)).symlink_to(file.name)
    target = tools.out_dir / "libcuda.so.1"
    aliases = tools.out_dir / symbols.ALIASES_DIR
    aliases.mkdir(exist_ok=True)
    options = ("-Wl,--no-as-needed", str(target), "-Wl,-rpath,$ORIGIN/..")
    tools.link(aliases / "libcuda.so", [], *options)
    (tools.out_dir / "libcuda.so").symlink_to(target.name)


def _link_instead_for_cufft(tools: _Tools, objects: dict[str, Path]) -> None:
    """Link what the real cuFFT finds instead of a driver."""
    instead = tools.out_dir / symbols.CUFFT_INSTEAD
    instead.parent.mkdir(parents=True, exist_ok=True)
    tools.link(instead, [objects[symbols.CUFFT_INSTEAD_SOURCE]])


def _build_listeners(tools: _Tools) -> None:
    """Build the libraries that listen to torch itself, against torch's own headers.

    They share classes with torch, and so torch's libstdc++: whichever the process has loaded.
    """
    options = [
        # torch 2.14's headers want C++20; older ones do not mind
        *("-std=c++20", "-O2", "-fPIC", "-w"),
        "-DNDEBUG",  # some of its classes have other members where assertions are on
        f"-D_GLIBCXX_USE_CXX11_ABI={int(tools.torch.uses_new_strings)}",
        *tools.macros,
        *("-isystem", str(NATIVE_DIR / "for_torch")),
        *("-isystem", str(tools.torch.directory / "include")),
    ]

    def compile_one(source: str) -> None:
        output = tools.objects_dir / f"{Path(source).name}.o"
        compile_cxx(tools.compiler, *options, "-c", str(NATIVE_DIR / source), "-o", str(output))

    with ThreadPoolExecutor(NUM_COMPILERS) as pool:
        list(pool.map(compile_one, sorted(set().union(*symbols.LISTENERS.values()))))
    for name, sources in symbols.LISTENERS.items():
        _link_listener(tools, name, sources)


def _link_listener(tools: _Tools, name: str, sources: Iterable[str]) -> None:
    script = tools.objects_dir / f"{name}.map"
    script.write_text(_LISTENER_SCRIPT)
    options = [
        *("-shared", *(str(tools.objects_dir / f"{Path(source).name}.o") for source in sources)),
        *(f"-L{tools.torch.directory / 'lib'}", "-lc10_cuda", "-lc10", "-ltorch_cpu"),
        *(f"-L{tools.out_dir}", "-lmemgate_phantom", "-Wl,-rpath,$ORIGIN"),
        *("-Wl,--as-needed", "-Wl,--allow-shlib-undefined"),
        f"-Wl,-soname,{name},--version-script,{script}",
    ]
    compile_cxx(tools.compiler, *options, "-o", str(tools.out_dir / name))
