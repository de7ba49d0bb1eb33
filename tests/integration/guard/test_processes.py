"""What a job starts keeps the guard, finds no GPU, and cannot write around it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from memgate_worker.guard.guard import HOOK_MISSING_STATUS, PROBLEMS_NAME, Protection
from tests.integration.guard.guarding import PYTHON, Place

SHOW = "import os; print(os.environ.get('LD_PRELOAD'), os.environ.get('MEMGATE_GUARD_WAY'))"


def _compile(place: Place, name: str, source: str, *options: str) -> Path:
    """Compile a C program or library next to the test's directory."""
    target = place.directory.parent / name
    subprocess.run(
        ["cc", "-x", "c", "-", "-x", "none", "-o", str(target), *options],
        input=source,
        text=True,
        check=True,
    )
    return target


@pytest.mark.parametrize(
    "program",
    [
        "import subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}], env={{}})",
        "import os, sys; os.execve(sys.executable, ['python', '-c', {show!r}], {{}})",
        "import os, sys; os.execle(sys.executable, 'python', '-c', {show!r}, {{}})",
        "import os, sys; "
        "os.waitpid(os.posix_spawn(sys.executable, ['p', '-c', {show!r}], {{}}), 0)",
        "import os, shlex, sys; "
        "os.system(shlex.join(['env', '-i', sys.executable, '-c', {show!r}]))",
        "import os, shlex, sys; os.environ.clear(); "
        "os.system(shlex.join([sys.executable, '-c', {show!r}]))",
        "import os, sys; fd = os.open(sys.executable, os.O_RDONLY); "
        "os.execve(fd, ['python', '-c', {show!r}], {{}})",
    ],
    ids=["subprocess", "execve", "execle", "posix_spawn", "env-i", "clearenv", "fexecve"],
)
def test_a_new_environment_keeps_the_guard(place: Place, program: str) -> None:
    """A program that is started with an empty environment still has our library and settings."""
    out = place.python(program.format(show=SHOW))
    assert out == f"{place.files.library} {place.way.protection.value}\n"


def test_a_users_own_lists_stay(place: Place) -> None:
    """LD_PRELOAD and PYTHONPATH of the user are kept behind ours, also when they are replaced."""
    library = _compile(place, "mine.so", "int mine = 1;", "-shared", "-fPIC")
    hook_dir = place.directory.parent / "hook"
    hook_dir.mkdir()
    show = "import os; print(os.environ['LD_PRELOAD'], os.environ['PYTHONPATH'])"
    inner = f'env LD_PRELOAD={library} PYTHONPATH=/b {PYTHON} -c "{show}"'
    result = place.run(
        ["/bin/sh", "-c", f'{PYTHON} -c "{show}"; {inner}'],
        environment={"LD_PRELOAD": str(library), "PYTHONPATH": "/a"},
        guard=place.guard(hook_dir=hook_dir),
    )
    guard = place.files.library
    want = [f"{guard}:{library} {hook_dir}:/a", f"{guard}:{library} {hook_dir}:/b"]
    assert result.stdout.splitlines() == want


def test_no_new_rights(place: Place) -> None:
    """Programs with other rights do not get them: they would run without our library."""
    assert "NoNewPrivs:\t1" in place.shell("cat /proc/self/status")


# --- GPUs --------------------------------------------------------------------------------------


@pytest.fixture
def fake_gpu() -> Iterator[Path]:
    """A device file named as NVIDIA's are."""
    path = Path("/dev/nvidia-memgate-test")
    try:
        path.write_text("")
    except OSError:
        pytest.skip("no right to make a file in /dev")
    path.chmod(0o666)
    yield path
    path.unlink()


def test_gpus_are_not_there(place: Place, fake_gpu: Path) -> None:
    """A GPU's device file is missing for open, stat and, where files are redirected, raw calls."""
    out = place.python(
        textwrap.dedent(
            f"""
            import os
            for ask in (os.stat, lambda p: os.open(p, os.O_RDWR), lambda p: os.open(p, 0)):
                try:
                    print(ask({str(fake_gpu)!r}))
                except OSError as error:
                    print(error.errno)
            """
        )
    )
    assert out == "2\n2\n2\n"


def test_only_our_driver_is_loaded(place: Place) -> None:
    """libcuda is loaded from the stand-ins' directory, by name or path, and nowhere else."""
    standins = place.directory.parent / "standins"
    standins.mkdir()
    _compile(place, "standins/libcuda.so.1", "int ours = 1;", "-shared", "-fPIC")
    real = _compile(place, "libcuda.so.1", "int real = 1;", "-shared", "-fPIC")
    program = textwrap.dedent(
        """
        import ctypes, sys
        for name in sys.argv[1:]:
            try:
                library = ctypes.CDLL(name)
                print("ours" if hasattr(library, "ours") else "real")
            except OSError:
                print("refused")
        """
    )
    names = [str(real), str(standins / "libcuda.so.1"), "libcuda.so.1"]
    for places, want in (((standins,), "refused ours ours"), ((), "refused refused refused")):
        result = place.run(
            [PYTHON, "-c", program, *names],
            environment={"LD_LIBRARY_PATH": str(real.parent)},
            guard=place.guard(standins_dirs=places),
        )
        assert result.stdout.split() == want.split(), result.stderr


def test_libraries_are_found_by_the_search_path_of_their_caller(place: Place) -> None:
    """dlopen by bare name still uses the RUNPATH of the library that calls it."""
    base = place.directory.parent
    _compile(place, "libfound.so", "int found = 1;", "-shared", "-fPIC")
    source = '#include <dlfcn.h>\nint ask(void) { return !!dlopen("libfound.so", RTLD_NOW); }'
    options = ("-shared", "-fPIC", "-Wl,--enable-new-dtags,-rpath,$ORIGIN")
    caller = _compile(place, "libcaller.so", source, *options)
    assert caller.parent == base
    assert place.python(f"import ctypes; print(ctypes.CDLL({str(caller)!r}).ask())") == "1\n"


# --- the hook ----------------------------------------------------------------------------------

LOAD_TORCH = "import ctypes; ctypes.CDLL({path!r}); print('loaded')"


@pytest.fixture
def torch_library(place: Place) -> Path:
    """A library that is named as torch's."""
    return _compile(place, "libtorch_cuda.so", "int torch = 1;", "-shared", "-fPIC")


def _problems(place: Place) -> list[dict[str, object]]:
    file = place.run_dir / PROBLEMS_NAME
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_torch_without_the_hook_is_stopped(place: Place, torch_library: Path) -> None:
    """A process that loads torch before the hook has announced itself ends, and is reported."""
    program = LOAD_TORCH.format(path=str(torch_library))
    guard = place.guard(hook_dir=place.directory)
    result = place.run([PYTHON, "-I", "-c", program, "ü\n"], guard=guard)
    assert (result.returncode, result.stdout) == (HOOK_MISSING_STATUS, "")
    (problem,) = _problems(place)
    assert problem["code"] == "HOOK_MISSING"
    assert problem["executable"] == os.path.realpath(PYTHON)
    assert problem["library"] == str(torch_library)
    assert isinstance(problem["pid"], int)
    assert isinstance(problem["command"], list)
    assert problem["command"][:3] == [PYTHON, "-I", "-c"]


def test_torch_with_the_hook_is_loaded(place: Place, torch_library: Path) -> None:
    """After the hook has announced itself, torch is loaded; also in forked processes."""
    program = "import ctypes, os; ctypes.CDLL(None).memgate_guard_hook_present(); os.fork(); "
    program += LOAD_TORCH.format(path=str(torch_library))
    result = place.run([PYTHON, "-c", program], guard=place.guard(hook_dir=place.directory))
    assert (result.returncode, result.stdout) == (0, "loaded\nloaded\n")
    assert _problems(place) == []


def test_a_program_linked_with_torch_is_stopped(place: Place, torch_library: Path) -> None:
    """A program that has torch as a needed library never gets to its main function."""
    options = ("-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN", str(torch_library))
    program = _compile(place, "linked", "int main(void) { return 0; }", *options)
    result = place.run([str(program)], guard=place.guard(hook_dir=place.directory))
    assert result.returncode == HOOK_MISSING_STATUS
    assert [problem["code"] for problem in _problems(place)] == ["HOOK_MISSING"]


# --- around the library ------------------------------------------------------------------------

RAW = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static long call(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

int main(void) {
    const char *file = "notes.txt";
    long results[] = {
        call(SYS_open, (long)file, O_WRONLY | O_TRUNC, 0, 0),
        call(SYS_openat, AT_FDCWD, (long)file, O_RDWR, 0),
        call(SYS_openat, AT_FDCWD, (long)"fresh", O_CREAT | O_WRONLY, 0644),
        call(SYS_truncate, (long)file, 0, 0, 0),
        call(SYS_unlink, (long)"run.sh", 0, 0, 0),
        call(SYS_rename, (long)file, (long)"other", 0, 0),
        call(SYS_mkdir, (long)"directory", 0755, 0, 0),
        call(SYS_rmdir, (long)"empty", 0, 0, 0),
        call(SYS_link, (long)"other", (long)"hard", 0, 0),
        call(SYS_symlink, (long)file, (long)"soft", 0, 0),
        call(SYS_chmod, (long)"hard", 0600, 0, 0),
        call(SYS_fchmodat, AT_FDCWD, (long)"data", 0700, 0),
        call(SYS_utimensat, AT_FDCWD, (long)"data/a.bin", 0, 0),
    };
    int num_failed = 0;
    for (unsigned i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i] < 0) num_failed++, printf("%u failed: %ld\n", i, results[i]);
    return num_failed;
}
"""


def test_raw_calls_are_private(place: Place) -> None:
    """System calls that a program makes without libc do what the functions of libc do."""
    result = place.run([str(_compile(place, "raw", RAW))])
    if not place.way.use_landlock or place.way.protection is Protection.OVERLAY:
        assert (result.returncode, result.stdout) == (0, "")
    else:
        # a plain open for writing is left to Landlock, which knows only places
        assert (result.returncode, result.stdout) == (1, "1 failed: -13\n")


def test_a_static_program_does_not_write(place: Place) -> None:
    """A program that cannot have our library is ended where it would write, or is private."""
    try:
        program = _compile(place, "raw", RAW, "-static")
    except subprocess.CalledProcessError:
        pytest.skip("no static libc here")
    result = place.run([str(program)])
    if place.way.protection is Protection.PRELOAD:
        assert result.returncode == -signal.SIGSYS
    else:
        assert result.returncode == 0


@pytest.mark.parametrize(
    "parent",
    [
        "import subprocess, sys; subprocess.run(sys.argv[1:])",
        "import os, sys; os.wait() if os.fork() else os.execv(sys.argv[1], sys.argv[1:])",
        "import os, sys; os.waitid(os.P_ALL, 0, os.WEXITED) if os.fork()"
        " else os.execv(sys.argv[1], sys.argv[1:])",
        "import os, sys; os.system(sys.argv[1])",
        "import os, sys; os.system(sys.argv[1] + '; true')",
    ],
    ids=["subprocess", "wait", "waitid", "system", "shell"],
)
def test_a_program_that_was_ended_is_reported(place: Place, parent: str) -> None:
    """Its parent seldom says why it failed."""
    if place.way.protection is not Protection.PRELOAD:
        pytest.skip("the kernel keeps its changes apart")
    try:
        program = _compile(place, "raw", RAW, "-static")
    except subprocess.CalledProcessError:
        pytest.skip("no static libc here")
    result = place.run([PYTHON, "-c", parent, str(program)])
    assert result.returncode == 0, result.stderr
    (problem,) = _problems(place)
    assert problem["code"] == "PROGRAM_ENDED"
    assert Path(str(problem["program"])).name == "raw"


UNAWARE = r"""
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <ucontext.h>

/* how programs that Go has built are known */
__asm__(".section .note.go.buildid,\"a\",@note\n.long 4, 4, 4\n.ascii \"Go\\0\\0abcd\"\n.text\n");

static long call(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static ucontext_t before, small;
static long results[10];
static char line[20], place[4096];

static void work(void) {
    struct stat info;
    struct sockaddr_un address = {AF_UNIX, "made/socket"};
    results[0] = call(SYS_mkdirat, AT_FDCWD, (long)"made", 0755, 0);
    results[1] = call(SYS_newfstatat, AT_FDCWD, (long)"made", (long)&info, 0);
    results[2] = call(SYS_chdir, (long)"made", 0, 0, 0);
    results[3] = call(SYS_getcwd, (long)place, sizeof place, 0, 0) - (long)strlen(place) - 1;
    results[4] = call(SYS_chdir, (long)"..", 0, 0, 0);
    long fd = call(SYS_openat, AT_FDCWD, (long)"notes.txt", O_RDWR | O_TRUNC, 0);
    results[5] = call(SYS_write, fd, (long)"changed\n", 8, 0) - 8;
    fd = call(SYS_openat, AT_FDCWD, (long)"notes.txt", O_RDONLY, 0);
    results[6] = call(SYS_read, fd, (long)line, 8, 0) - 8;
    results[7] = call(SYS_unlinkat, AT_FDCWD, (long)"run.sh", 0, 0);
    results[8] = call(SYS_access, (long)"run.sh", 0, 0, 0) + 2; /* ENOENT */
    results[9] = call(SYS_bind, socket(AF_UNIX, SOCK_STREAM, 0), (long)&address, sizeof address, 0);
}

int main(void) {
    struct { void *handler; unsigned long flags, restorer, mask; } own = {abort, 0, 0, 0};
    if (call(SYS_rt_sigaction, SIGSYS, (long)&own, 0, 8)) return 1;
    stack_t alternate = {malloc(32768), 0, 32768};
    sigaltstack(&alternate, 0);
    getcontext(&small);
    char *stack = malloc(16384);
    memset(stack, 'x', 8192);
    small.uc_stack.ss_sp = stack + 8192;
    small.uc_stack.ss_size = 8192;
    small.uc_link = &before;
    makecontext(&small, work, 0);
    swapcontext(&before, &small);
    for (int i = 0; i < 8192; i++) if (stack[i] != 'x') return 2;
    for (int i = 0; i < 10; i++) if (results[i]) printf("%d: %ld\n", i, results[i]);
    printf("%s%s\n", line, strrchr(place, '/'));
    fflush(stdout);
    return system("cat notes.txt; ls made");
}
"""


def test_a_program_without_use_for_libc_sees_what_it_made(place: Place) -> None:
    """Go's make all calls themselves, handle all signals, and have stacks of a few kilobytes."""
    result = place.run([str(_compile(place, "unaware", UNAWARE, "-w"))])
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "changed\n/made\nchanged\nsocket\n"


def test_calls_by_number_through_libc_are_redirected(place: Place) -> None:
    """The function syscall() does what the named functions do."""
    out = place.python(
        textwrap.dedent(
            """
            import ctypes, os
            libc = ctypes.CDLL(None)
            fd = libc.syscall(257, -100, b"notes.txt", os.O_WRONLY | os.O_TRUNC, 0)
            os.write(fd, b"by number"); os.close(fd)
            assert libc.syscall(87, b"run.sh") == 0 and not os.path.exists("run.sh")
            assert libc.syscall(82, b"data/a.bin", b"z") == 0
            print(open("notes.txt").read(), os.path.getsize("z"))
            """
        )
    )
    assert out == "by number 16384\n"


def test_shared_memory_of_others_stays(place: Place) -> None:
    """A file in /dev/shm that was there before is not changed."""
    file = Path(f"/dev/shm/{place.scratch.name}")
    file.write_text("theirs")
    file.chmod(0o666)
    try:
        place.run(
            ["/bin/sh", "-c", f"echo x > {file}; rm {file}; echo y > {file}-new; cat {file}-new"]
        )
        assert file.read_text() == "theirs"
    finally:
        file.unlink()
        Path(f"{file}-new").unlink(missing_ok=True)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_c_and_cpp_streams_are_redirected(place: Place) -> None:
    """fopen, freopen, mkstemp, tmpfile, scandir, glob and nftw's building blocks of libc."""
    source = r"""
    #define _GNU_SOURCE
    #include <dirent.h>
    #include <glob.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <unistd.h>
    int main(void) {
        FILE *file = fopen("notes.txt", "r+e");
        fputs("ABC", file); fclose(file);
        char line[20], name[] = "tempXXXXXX", suffixed[] = "tXXXXXX.bin";
        file = fopen("link", "r"); fgets(line, 20, file); fclose(file);
        printf("%s", line);
        close(mkstemp(name)); close(mkstemps(suffixed, 4));
        printf("%d %d\n", access(name, W_OK), access(suffixed, W_OK));
        file = tmpfile(); fputs("t", file); rewind(file); printf("%c\n", fgetc(file));
        unlink("run.sh");
        struct dirent **names; glob_t found;
        int count = scandir("data", &names, 0, alphasort);
        printf("%d %s\n", count, names[2]->d_name);
        printf("%d %d\n", glob("t??????.bin", 0, 0, &found), glob("run.*", 0, 0, &found));
        fflush(stdout);
        freopen("data/a.bin", "w", stdout); printf("redirected"); fclose(stdout);
        return 0;
    }
    """
    program = _compile(place, "streams", source, "-w")
    result = place.run([str(program)])
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["ABC", "0 0", "t", "4 a.bin", "0 3"]
