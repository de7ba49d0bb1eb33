"""Real programs change, replace and delete real files: the job sees it, the files do not.

The fixture `place` compares every name, byte, mode and time of the directory after each test.
"""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest

from memgate_worker.guard.changes import keep_changes
from tests.integration.guard.guarding import Place


def test_files_are_overwritten_and_removed_for_the_job_only(place: Place) -> None:
    """A shell's redirections, rm, cp, mv and mkdir work, and are seen by later programs."""
    out = place.shell(
        """
        echo new > notes.txt; cat notes.txt; echo more >> data/deep/b.txt; cat links/b.txt
        rm -rf data/deep/deeper; ls data/deep; mv data/a.bin data/z.bin; ls data
        mkdir made; cp run.sh made/; made/run.sh; rmdir empty; ls; test ! -e empty
        """
    )
    want = "new\ndeep\nmore\nb.txt\ndeep\nz.bin\nran\n"
    listing = "data\nlink\nlinks\nlocked\nmade\nnotes.txt\nnowhere\nout\nrun.sh\n"
    assert out == want + listing


def test_a_link_is_followed_and_what_it_points_to_is_made(place: Place) -> None:
    """Writing through a link changes its target, and makes one that is missing."""
    out = place.shell("echo x > link; cat notes.txt; echo y > nowhere; cat missing; ls -l nowhere")
    assert out.startswith("x\ny\n")
    assert out.endswith("nowhere -> missing\n")


@pytest.mark.parametrize(
    ("program", "want"),
    [
        ("sed -i s/two/zwei/ notes.txt; cat notes.txt", "one\nzwei\nthree\n"),
        ("tar cf all.tar data; rm -rf data; tar xf all.tar; cat data/deep/b.txt", "deep\n"),
        ("cp -a data copy; diff -r data copy; rm -r data; find copy -type f | wc -l", "3\n"),
        ("chmod 600 run.sh; stat -c %a run.sh; chmod 700 data; stat -c %a data", "600\n700\n"),
        ("touch -d @5 notes.txt; stat -c %Y notes.txt", "5\n"),
        ("truncate -s 3 notes.txt; cat notes.txt; truncate -s 0 notes.txt; cat notes.txt", "one"),
        ("ln notes.txt hard; echo z > hard; cat notes.txt", "z\n"),
        ("ln -sfn data link; ls link", "a.bin\ndeep\n"),
        ("find . -name '*.bin' -delete; find . -name '*.bin'", ""),
        ("cd data; cd ..; rm -rf data; mkdir data; ls -A data; pwd | xargs basename", "project\n"),
        ("dd if=/dev/zero of=data/a.bin bs=1 count=4 conv=notrunc status=none; wc -c data/a.bin",
         "16384 data/a.bin\n"),
        ("mv out/checkpoint-100 old; ls old; ls out",
         "model.bin\nstate.json\ncheckpoint-200\ncheckpoint-300\n"),
        ("for f in *.txt; do echo $f; done; rm notes.txt; for f in *.txt; do echo $f; done",
         "notes.txt\n*.txt\n"),
    ],
    ids=[
        *("sed", "tar", "cp", "chmod", "touch", "truncate", "ln", "symlink", "find", "rmdir", "dd"),
        *("mv", "glob"),
    ],
)  # fmt: skip
def test_common_programs(place: Place, program: str, want: str) -> None:
    """Programs of every day do what they do without the guard."""
    assert place.shell(program) == want


@pytest.mark.skipif(not shutil.which("sqlite3"), reason="sqlite3 is not installed")
def test_a_database_is_written_and_read_back(place: Place) -> None:
    """SQLite with a journal and with a write-ahead log, in a file that is new and then reopened."""
    out = place.shell(
        """
        sqlite3 new.db 'create table t(x); insert into t values(1)'
        sqlite3 new.db 'pragma journal_mode=wal; insert into t values(2); select sum(x) from t'
        sqlite3 new.db 'delete from t where x=1; vacuum; select x from t'
        """
    )
    assert out == "wal\n3\n2\n"


def test_python_reads_back_what_it_changed(place: Place) -> None:
    """Python's own ways to change files: open, replace, rmtree, memory maps, descriptors."""
    out = place.python(
        textwrap.dedent(
            """
            import glob, mmap, os, shutil, tempfile
            from pathlib import Path
            with open("notes.txt", "r+") as file:
                file.write("ONE")
            assert open("notes.txt").read() == "ONE\\ntwo\\nthree\\n"
            with open("data/a.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                memory[:4] = b"mmap"
            assert Path("data/a.bin").read_bytes()[:6] == b"mmap\\x04\\x05"
            with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
                file.write("replaced")
            os.replace(file.name, "run.sh")
            assert Path("run.sh").read_text() == "replaced"
            shutil.rmtree("out")
            assert not os.path.exists("out") and "out" not in os.listdir()
            os.makedirs("out/checkpoint-100")
            assert os.listdir("out/checkpoint-100") == []
            fd = os.open("data", os.O_RDONLY)
            os.rename("a.bin", "b.bin", src_dir_fd=fd, dst_dir_fd=fd)
            assert sorted(os.listdir(fd)) == ["b.bin", "deep"], os.listdir(fd)
            assert sorted(e.name for e in os.scandir("data") if e.is_file()) == ["b.bin"]
            os.chmod("data/b.bin", 0o640)
            assert os.stat("b.bin", dir_fd=fd).st_mode & 0o777 == 0o640
            with tempfile.TemporaryFile() as file:
                file.write(b"x"); file.seek(0); assert file.read() == b"x"
            with tempfile.TemporaryDirectory() as name:
                Path(name, "f").write_text("t"); assert glob.glob(name + "/*") == [name + "/f"]
            assert not os.path.exists(name)
            os.chdir("out"); os.mkdir("sub"); os.chdir("sub")
            assert os.getcwd().endswith("/project/out/sub"), os.getcwd()
            assert os.path.realpath("../../link").endswith("/project/notes.txt")
            Path("here").write_text("h"); assert os.path.samefile("here", "../sub/here")
            assert os.readlink("/proc/self/cwd").endswith("/project/out/sub")
            print("done")
            """
        )
    )
    assert out == "done\n"


def test_checkpoints_are_rotated_for_the_job_only(place: Place) -> None:
    """A trainer that keeps its last two checkpoints deletes those of an earlier run, for itself."""
    out = place.python(
        textwrap.dedent(
            """
            import json, os, re, shutil
            from pathlib import Path
            def rotate(limit):
                names = [n for n in os.listdir("out") if re.fullmatch(r"checkpoint-\\d+", n)]
                for name in sorted(names, key=lambda n: int(n.split("-")[1]))[:-limit]:
                    shutil.rmtree(os.path.join("out", name))
            for step in (400, 500, 600):
                draft = Path(f"out/tmp-checkpoint-{step}")
                draft.mkdir()
                (draft / "model.bin").write_bytes(b"m" * 1000)
                (draft / "state.json").write_text(json.dumps({"step": step}))
                os.rename(draft, f"out/checkpoint-{step}")
                rotate(2)
            print(sorted(os.listdir("out")))
            print(json.loads(Path("out/checkpoint-600/state.json").read_text()))
            os.rename("out/checkpoint-600", "out/checkpoint-100")
            print(sorted(os.listdir("out/checkpoint-100")))
            """
        )
    )
    first, second, third = out.splitlines()
    assert first == "['checkpoint-500', 'checkpoint-600']"
    assert second == "{'step': 600}"
    assert third == "['model.bin', 'state.json']"


def test_an_earlier_directory_is_renamed(place: Place) -> None:
    """Rename of a directory that was there before works, without the EXDEV of a plain overlay."""
    out = place.python(
        "import os; os.rename('out/checkpoint-200', 'best'); print(sorted(os.listdir('best')));"
        "print(os.path.getsize('best/model.bin'), os.path.exists('out/checkpoint-200'))"
    )
    assert out == "['model.bin', 'state.json']\n50000 False\n"


def test_many_processes_write_one_file(place: Place) -> None:
    """Forked processes that append to one file that was there before lose nothing."""
    out = place.python(
        textwrap.dedent(
            """
            import os
            children = []
            for child in range(8):
                pid = os.fork()
                if pid == 0:
                    for line in range(50):
                        with open("notes.txt", "a") as file:
                            file.write(f"{child} {line}\\n")
                        with open(f"data/new-{child}-{line}", "w") as file:
                            file.write("x")
                    os._exit(0)
                children.append(pid)
            for pid in children:
                assert os.waitpid(pid, 0)[1] == 0
            lines = open("notes.txt").read().splitlines()
            print(len(lines), len(set(lines)), len(os.listdir("data")))
            """
        )
    )
    assert out == "403 403 402\n"


def test_a_fork_while_a_thread_writes_blocks_nothing(place: Place) -> None:
    """A process that is forked while another thread makes copies does not keep their lock."""
    out = place.python(
        textwrap.dedent(
            """
            import os, threading, time
            ends = threading.Event()
            def write():
                for number in range(100000):
                    if ends.is_set():
                        return
                    with open(f"data/{number}", "w") as file:
                        file.write("x")
            thread = threading.Thread(target=write)
            thread.start()
            children = []
            for _ in range(40):
                pid = os.fork()
                if pid == 0:
                    time.sleep(2)
                    open(f"data/child-{os.getpid()}", "w").close()
                    os._exit(0)
                children.append(pid)
            ends.set()
            thread.join()
            assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
            print(sum(name.startswith("child") for name in os.listdir("data")))
            """
        )
    )
    assert out == "40\n"


def test_shared_memory_and_sockets_work(place: Place) -> None:
    """multiprocessing: pools, queues, semaphores, shared memory, listeners with a path."""
    out = place.python(
        textwrap.dedent(
            """
            import multiprocessing as mp
            from multiprocessing import shared_memory
            from multiprocessing.connection import Client, Listener
            def work(name, lock, queue):
                memory = shared_memory.SharedMemory(name)
                with lock:
                    memory.buf[0] += 1
                memory.close()
                queue.put(1)
            if __name__ == "__main__":
                mp.set_start_method("fork")
                memory = shared_memory.SharedMemory(create=True, size=100)
                lock, queue = mp.Lock(), mp.Queue()
                children = [mp.Process(target=work, args=(memory.name, lock, queue)) for _ in "123"]
                [child.start() for child in children]
                print(sum(queue.get() for _ in children))
                [child.join() for child in children]
                print(memory.buf[0])
                memory.close(); memory.unlink()
                with Listener("socket", "AF_UNIX") as listener, Client("socket") as client:
                    with listener.accept() as other:
                        client.send("hello"); print(other.recv())
            """
        )
    )
    assert out == "3\n3\nhello\n"


def test_output_goes_where_it_was_sent(place: Place) -> None:
    """Standard output that is a file outside, by number and by name, pipes, /dev/null."""
    target = place.run_dir / "output"
    target.touch()
    target.chmod(0o666)
    with target.open("a") as stdout:
        result = place.run(
            ["/bin/sh", "-euc", "echo a; echo b >&2; echo c >> /dev/stdout; echo d > /dev/null"],
            stdout=stdout.fileno(),
        )
    assert (result.returncode, result.stderr) == (0, "b\n")
    assert target.read_text() == "a\nc\n"


def test_new_files_are_in_the_scratch_directory(place: Place) -> None:
    """What the job wrote is found under the path that it used."""
    place.shell("mkdir -p results; echo loss > results/log; echo changed > notes.txt")
    files = Path(f"{place.scratch}/files{place.directory}")
    assert (files / "results" / "log").read_text() == "loss\n"
    assert (files / "notes.txt").read_text() == "changed\n"


def test_what_is_kept_is_what_changed(place: Place) -> None:
    """With the guard's own traces removed, the scratch directory has the job's files, no others."""
    place.shell(
        "mkdir -p results; echo loss > results/log; echo new > notes.txt; rm -r out; rm run.sh;"
        "ln -s log results/last; echo x > /var/tmp/$$-new"
    )
    keep_changes(place.scratch)
    assert [path.name for path in place.scratch.iterdir()] == ["files"]
    files = place.scratch / "files"
    found = {path for path in files.rglob("*") if path.is_symlink() or not path.is_dir()}
    here = Path(f"{files}{place.directory}")
    want = {here / "results" / "log", here / "results" / "last", here / "notes.txt"}
    assert want <= found
    (other,) = found - want
    assert other.parent == files / "var" / "tmp"
    assert other.name.endswith("-new")


def test_files_elsewhere_are_protected(place: Place) -> None:
    """/tmp, the home directory and system directories are as protected as the working directory."""
    name = f"/tmp/{place.scratch.name}"
    assert place.shell(f"echo t > {name}; cat {name}; mkdir {name}.d; rmdir {name}.d") == "t\n"
    assert not Path(name).exists()
    if not place.way.as_other_user:
        place.shell("echo x > ../new; rm -rf /etc/hostname; test ! -e /etc/hostname")
        assert not (place.directory.parent / "new").exists()


def test_the_run_directory_is_shared(place: Place) -> None:
    """What the job writes into the run directory is there for us."""
    place.shell(f"echo fact > {place.run_dir}/fact")
    assert (place.run_dir / "fact").read_text() == "fact\n"


def test_a_protected_file_stays_read_only(place: Place) -> None:
    """A file that its user cannot write is not writable behind the guard either."""
    if not place.way.as_other_user:
        pytest.skip("root writes what it wants")
    result = place.run(["/bin/sh", "-c", "echo x > locked"])
    assert "ermission denied" in result.stderr


def test_a_second_command_sees_what_the_first_one_did(place: Place) -> None:
    """Commands that share a scratch directory share what is in it."""
    place.shell("rm notes.txt; echo 1 > made; mv data/a.bin .")
    assert place.shell("test ! -e notes.txt; cat made; ls data") == "1\ndeep\n"
