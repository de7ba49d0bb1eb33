"""Builds the stub libraries that stand in for NVIDIA's under one particular PyTorch.

Turns an installed torch (its `.so` files say which libraries and symbols it wants) and the headers
of the CUDA runtime it was built with into a directory of shared libraries: one for every NVIDIA
library torch needs, plus `libmemgate_phantom.so` with the device they share. What each symbol does
is in `symbols.py` and `native/`; how the result is loaded is in `control.py`.

It does not install torch, fetch headers, or check that a build works. Needs g++ and binutils (nm,
readelf).
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

from memgate_worker.engines.phantom import symbols

NATIVE_DIR = Path(__file__).parent / "native"
CORE_NAME = "libmemgate_phantom.so"
STAMP_NAME = "build.sha256"
#: the headers refuse compilers younger than themselves, which matters for device code only
COMPILE = (
    *("g++", "-std=c++17", "-O2", "-fPIC", "-Wall", "-Wextra"),
    "-D__NV_NO_HOST_COMPILER_CHECK=1",
)
NUM_COMPILERS = 2

#: A library of NVIDIA's as the loader asks for it. Copies that other wheels carry under a name with
#: a hash in it (torchvision's own libcudart) are not ours to replace.
_SONAME = re.compile(r"(lib[A-Za-z_-]+)\.so\.\d+")


class Symbol(NamedTuple):
    """One name that torch wants from a library."""

    name: str
    version: str
    """The symbol version, empty if the library has none."""
    is_data: bool


class BuildError(RuntimeError):
    """A tool failed; the message is the tool's own."""


def build(
    torch_dir: Path, include_dir: Path, out_dir: Path, extra_files: Iterable[Path] = ()
) -> None:
    """Build every stub that the torch package in `torch_dir` needs.

    Args:
        torch_dir: the installed package, `.../site-packages/torch`.
        include_dir: has `cuda_runtime_api.h` and `cuda.h` of the CUDA version torch was built for.
        out_dir: where the libraries go; made if missing. Nothing is done if they are up to date.
        extra_files: further `.so` files that want NVIDIA's libraries, torchvision's for instance.

    Raises:
        BuildError: the compiler or a binutils program failed.
    """
    # 1. Is there anything to do? The stamp is written last.
    files = sorted([*torch_dir.glob("lib/*.so*"), *torch_dir.glob("_C*.so"), *extra_files])
    macros = version_macros(torch_dir, include_dir)
    stamp = _stamp(files, macros, include_dir)
    stamp_file = out_dir / STAMP_NAME
    if stamp_file.is_file() and stamp_file.read_text() == stamp:
        return

    # 2. What does torch want?
    wanted = read_imports(files)
    for name in looked_up_names(torch_dir):
        soname = "libcuda.so.1" if symbols.library_of(name) == "libcuda" else "libnvidia-ml.so.1"
        wanted[soname].add(Symbol(name, "", False))

    # 3. Compile our sources, each once, then link one library per soname.
    objects_dir = out_dir / "objects"
    objects_dir.mkdir(parents=True, exist_ok=True)
    objects = _compile_sources(objects_dir, include_dir, macros)
    _link(out_dir / CORE_NAME, [objects[name] for name in symbols.CORE_SOURCES], ["-ldl"])
    for soname in wanted:
        if soname.split(".so")[0] in symbols.INSTEAD_OF:
            (out_dir / symbols.INSTEAD_DIR).mkdir(exist_ok=True)
            _link(out_dir / symbols.INSTEAD_DIR / soname, [objects[symbols.INSTEAD_SOURCE]], [])
    with ThreadPoolExecutor(NUM_COMPILERS) as pool:
        jobs = [
            pool.submit(_build_stub, soname, names, objects, out_dir)
            for soname, names in wanted.items()
        ]
        for job in jobs:
            job.result()
    for name, sources in (
        ("libmemgate_tracker.so", [NATIVE_DIR / "tracker.cpp"]),
        ("libmemgate_values.so", sorted((NATIVE_DIR / "values").glob("*.cpp"))),
    ):
        _build_for_torch(name, sources, torch_dir, include_dir, out_dir)
    stamp_file.write_text(stamp)


def _build_for_torch(
    name: str, sources: Iterable[Path], torch_dir: Path, include_dir: Path, out_dir: Path
) -> None:
    """Build a library that listens to torch itself, against torch's own headers."""
    options = [
        f"-D_GLIBCXX_USE_CXX11_ABI={int(_uses_new_strings(torch_dir))}",
        *("-isystem", str(torch_dir / "include")),
        *("-isystem", str(include_dir)),
    ]

    def compile_one(source: Path) -> Path:
        made = out_dir / "objects" / f"{source.parent.name}-{source.name}.o"
        # torch 2.14's headers want C++20, older ones do not mind; and some of its classes have
        # other members where assertions are on
        _run(*COMPILE, "-std=c++20", "-w", "-DNDEBUG", *options, "-c", str(source), "-o", str(made))
        return made

    with ThreadPoolExecutor(NUM_COMPILERS) as pool:
        objects = list(pool.map(compile_one, sources))
    libraries = [f"-L{torch_dir / 'lib'}", "-lc10_cuda", "-ltorch_cpu", "-lc10"]
    libraries += [f"-L{out_dir}", "-lmemgate_phantom", "-Wl,-rpath,$ORIGIN"]
    _link(out_dir / name, objects, [*libraries, "-Wl,--allow-shlib-undefined"])


def _uses_new_strings(torch_dir: Path) -> bool:
    """Tell which of the two layouts of std::string torch was built with.

    Asked of a function of torch's own: parts of the C++ library in the same file have either.
    """
    names = _run("nm", "-D", "--defined-only", str(torch_dir / "lib" / "libc10.so"))
    return re.search(r"_ZN3c105ErrorC\dE\w*__cxx11", names) is not None


def read_imports(files: Iterable[Path]) -> dict[str, set[Symbol]]:
    """Return the symbols that `files` want from each of NVIDIA's libraries, by soname."""
    files = list(files)
    sonames = {soname for file in files for soname in _needed_sonames(file)}
    sonames.update(symbols.OPENED_BY_NAME)
    soname_of_library = {soname.split(".so")[0]: soname for soname in sonames}
    wanted: dict[str, set[Symbol]] = {soname: set() for soname in sorted(sonames)}
    tables = {file: _symbol_table(file) for file in files}
    # What one of the files gives another is not NVIDIA's, even if its name looks like it.
    defined = {name for table in tables.values() for name in table.defined}
    for file, table in tables.items():
        soname_of_version = _version_needs(file)
        for symbol in table.wanted:
            library = symbols.library_of(symbol.name)
            if symbol.version:
                soname = soname_of_version.get(symbol.version)
            else:
                soname = soname_of_library.get(str(library)) if symbol.name not in defined else None
            if soname in wanted:
                wanted[soname].add(symbol)
    return wanted


def _needed_sonames(file: Path) -> list[str]:
    libraries = set(symbols.LIBRARY_OF_PREFIX.values())
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", _run("readelf", "-dW", str(file)))
    return [name for name in needed if (m := _SONAME.fullmatch(name)) and m[1] in libraries]


class _SymbolTable(NamedTuple):
    defined: list[str]
    wanted: list[Symbol]


def _symbol_table(file: Path) -> _SymbolTable:
    """Read the dynamic symbols of `file`. The linker has noted for each import whether it is data.

    Weak imports are left out: a program asks by them whether a function exists, and ours do not.
    """
    table = _SymbolTable([], [])
    for line in _run("readelf", "--dyn-syms", "-W", str(file)).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].endswith(":"):
            continue
        name, _, version = fields[7].partition("@")
        if fields[6] != "UND":
            table.defined.append(name)
        elif fields[4] != "WEAK":
            table.wanted.append(Symbol(name, version.lstrip("@"), fields[3] in ("OBJECT", "TLS")))
    return table


def _version_needs(file: Path) -> dict[str, str]:
    """Map each symbol version that `file` asks for to the soname it asks it of."""
    needs: dict[str, str] = {}
    soname = ""
    for line in _run("readelf", "-VW", str(file)).splitlines():
        if match := re.search(r"Version: \d+\s+File: (\S+)", line):
            soname = match[1]
        elif match := re.search(r"Name: (\S+)\s+Flags: .*Version: \d+", line):
            needs[match[1]] = soname
    return needs


def looked_up_names(torch_dir: Path) -> set[str]:
    """Return the driver and NVML calls that torch looks up by name while it runs."""
    return {
        match.decode()
        for name in symbols.FILES_WITH_LOOKUPS
        for match in symbols.LOOKED_UP_NAME.findall((torch_dir / "lib" / name).read_bytes())
    }


def version_macros(torch_dir: Path, include_dir: Path) -> list[str]:
    """Return compiler options with the library versions that our stubs claim to be.

    They are the versions torch was built for: it compares them with its own when it starts.
    """
    header = (include_dir / "cuda_runtime_api.h").read_text()
    cuda = int(re.findall(r"#define CUDART_VERSION\s+(\d+)", header)[0])
    requirements = "\n".join(
        path.read_text() for path in torch_dir.parent.glob("torch-*.dist-info/METADATA")
    )

    def pinned(package: str, default: tuple[int, int, int]) -> tuple[int, int, int]:
        match = re.search(rf"nvidia-{package}-cu\d+ ?\(?==(\d+)\.(\d+)\.(\d+)", requirements)
        return (int(match[1]), int(match[2]), int(match[3])) if match else default

    cudnn = pinned("cudnn", (9, 1, 0))
    nccl = pinned("nccl", (2, 21, 5))
    cublas = pinned("cublas", (cuda // 1000, cuda % 1000 // 10, 0))
    return [
        f"-DMEMGATE_CUDA_VERSION={cuda}",
        f"-DMEMGATE_CUDNN_VERSION={cudnn[0] * 10000 + cudnn[1] * 100 + cudnn[2]}",
        f"-DMEMGATE_NCCL_VERSION={nccl[0] * 10000 + nccl[1] * 100 + nccl[2]}",
        f"-DMEMGATE_CUBLAS_VERSION={cublas[0] * 10000 + cublas[1] * 100 + cublas[2]}",
    ]


def _stamp(files: Iterable[Path], macros: list[str], include_dir: Path) -> str:
    """Digest everything that decides the result; torch's large files by size and time only."""
    digest = hashlib.sha256(repr([COMPILE, macros, str(include_dir)]).encode())
    for file in files:
        digest.update(repr((str(file), file.stat().st_size, file.stat().st_mtime_ns)).encode())
    digest.update(sources_digest().encode())
    return digest.hexdigest()


@cache
def sources_digest() -> str:
    """Digest the sources of the stand-ins: another digest, other libraries."""
    digest = hashlib.sha256()
    tables = [Path(__file__), Path(str(symbols.__file__))]
    for source in [*tables, *sorted(NATIVE_DIR.rglob("*.cpp")), *sorted(NATIVE_DIR.rglob("*.h"))]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _compile_sources(objects_dir: Path, include_dir: Path, macros: list[str]) -> dict[str, Path]:
    """Compile every source of `native/`; return the object files by source name."""
    names = {*symbols.CORE_SOURCES, *(name for group in symbols.SOURCES.values() for name in group)}
    names.add(symbols.INSTEAD_SOURCE)
    objects = {name: objects_dir / f"{name}.o" for name in sorted(names)}
    # The core offers its functions to the other libraries; theirs are chosen by a version script.
    include = ["-isystem", str(include_dir)]

    def compile_one(name: str) -> None:
        _run(*COMPILE, *macros, *include, "-c", str(NATIVE_DIR / name), "-o", str(objects[name]))

    with ThreadPoolExecutor(NUM_COMPILERS) as pool:
        list(pool.map(compile_one, objects))
    return objects


def _build_stub(soname: str, wanted: set[Symbol], objects: dict[str, Path], out_dir: Path) -> None:
    """Link one stub library from our definitions, generated ones and a version script."""
    library = soname.split(".so")[0]
    own_objects = [objects[name] for name in symbols.SOURCES.get(library, ())]
    modelled = {
        name for name in _defined_symbols(own_objects) if symbols.library_of(name) == library
    }
    generated = [symbol for symbol in sorted(wanted) if symbol.name not in modelled]
    source = out_dir / "objects" / f"{soname}.cpp"
    source.write_text(generate_source(library, generated))
    script = out_dir / "objects" / f"{soname}.map"
    script.write_text(version_script(modelled, wanted))
    generated_object = source.with_suffix(".o")
    _run(*COMPILE, "-c", str(source), "-o", str(generated_object))
    options = [f"-Wl,-soname,{soname}", f"-Wl,--version-script,{script}", f"-L{out_dir}"]
    options += ["-lmemgate_phantom", "-Wl,-rpath,$ORIGIN", "-ldl"]
    _link(out_dir / soname, [*own_objects, generated_object], options)


def _defined_symbols(objects: Iterable[Path]) -> set[str]:
    lines = [
        line for file in objects for line in _run("nm", "--defined-only", str(file)).splitlines()
    ]
    return {line.split()[2] for line in lines if line.split()[1] in "TDB"}


def generate_source(library: str, wanted: Iterable[Symbol]) -> str:
    """Return C++ that answers each symbol as `symbols.py` says, whatever its arguments."""
    lines = [
        f"// Generated by build.py: the symbols of {library} that have no code of their own.",
        'extern "C" {',
        "long memgate_phantom_refuse(const char*, long);",
        "const char* memgate_phantom_last_refusal();",
        "void memgate_phantom_count_launch();",
    ]
    for name in dict.fromkeys(symbol.name for symbol in wanted):
        is_data = any(symbol.is_data for symbol in wanted if symbol.name == name)
        lines.append(_generate_symbol(library, name, is_data))
    return "\n".join([*lines, "}", ""])


def _generate_symbol(library: str, name: str, is_data: bool) -> str:
    if is_data:
        # Its size is not recorded on the importing side; zeros for as much as any table needs.
        return f"alignas(64) char {name}[4096];"
    if symbols.LAUNCHES.fullmatch(name):
        return f"long {name}() {{ memgate_phantom_count_launch(); return 0; }}"
    if symbols.HARMLESS.fullmatch(name):
        return f"long {name}() {{ return 0; }}"
    if symbols.RETURNS_ERROR_TEXT.fullmatch(name):
        return f"const char* {name}() {{ return memgate_phantom_last_refusal(); }}"
    status = symbols.REFUSAL_STATUS.get(library, symbols.OTHER_REFUSAL_STATUS)
    if symbols.RETURNS_POINTER.fullmatch(name):
        status = 0
    return f'long {name}() {{ return memgate_phantom_refuse("{name}", {status}); }}'


def version_script(modelled: set[str], wanted: Iterable[Symbol]) -> str:
    """Return a linker script that gives each symbol its version and hides everything else."""
    names_of_version: dict[str, set[str]] = {}
    for symbol in wanted:
        names_of_version.setdefault(symbol.version, set()).add(symbol.name)
    versioned = sorted(version for version in names_of_version if version)
    asked_for = {symbol.name for symbol in wanted}
    default = versioned[0] if versioned else ""
    names_of_version.setdefault(default, set()).update(modelled - asked_for)
    if versioned:
        # A name asked for both with and without a version is found by both under the version.
        names_of_version[default] |= names_of_version.pop("", set())
    blocks = []
    for version, names in sorted(names_of_version.items()):
        listed = "".join(f" {name};" for name in sorted(names))
        blocks.append(f"{version} {{ {'global:' + listed if names else ''} }};")
    blocks[0] = blocks[0].replace(" };", " local: *; };")
    return "\n".join([*blocks, ""])


def _link(output: Path, objects: Iterable[Path], options: Iterable[str]) -> None:
    """Link beside the final name and rename: a running process may have the old library mapped."""
    temporary = output.with_name(output.name + ".new")
    soname = (
        [] if any("-soname" in option for option in options) else [f"-Wl,-soname,{output.name}"]
    )
    _run(
        "g++", "-shared", *map(str, objects), *soname, *options, "-Wl,-z,defs", "-o", str(temporary)
    )
    temporary.rename(output)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:2])} ... failed:\n{done.stderr}")
    return done.stdout
