"""Files are replaced whole, through links, and nothing but a regular file is ever replaced."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mlx_pam import durable


def write(path: Path) -> None:
    path.write_text("new")


@pytest.mark.parametrize("existing", [True, False], ids=["target exists", "dangling"])
def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path, existing: bool) -> None:
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "state", tmp_path / "state"
    if existing:
        target.write_text("old")
    link.symlink_to(target)
    durable.replace(link, write)
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["state"]


def test_a_link_to_a_link_is_followed_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("c")
    durable.replace(tmp_path / "a", write)
    assert (tmp_path / "c").read_text() == "new"
    assert (tmp_path / "a").is_symlink()
    assert (tmp_path / "b").is_symlink()


def test_permissions_of_a_replaced_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    path.chmod(0o640)
    durable.replace(path, write)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.fixture(params=["named pipe", "socket", "device", "folder"])
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Something that is no regular file, and its kind."""
    path = tmp_path / "state"
    if request.param == "named pipe":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "device":
        path = Path("/dev/null")
    else:
        with closing(socket.socket(socket.AF_UNIX)) as server:
            folder = Path.cwd()
            os.chdir(tmp_path)  # a socket's path is short
            try:
                server.bind("state")
            finally:
                os.chdir(folder)
            yield path, request.param
        return
    yield path, request.param


@pytest.mark.parametrize("by_link", [False, True], ids=["itself", "by a link"])
def test_what_is_no_regular_file_is_refused_and_stays(special, by_link, tmp_path) -> None:
    path, kind = special
    before = stat.S_IFMT(path.stat().st_mode)
    named = path
    if by_link:
        named = tmp_path / "link"
        named.symlink_to(path)
    assert durable.obstacle(named) == f"it is a {kind}, not a regular file"
    with pytest.raises(OSError, match=f"it is a {kind}"):
        durable.replace(named, write)
    assert stat.S_IFMT(path.stat().st_mode) == before
    assert named.is_symlink() == by_link


def test_a_loop_of_links_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "loop" in durable.obstacle(tmp_path / "a") or "symbolic links" in durable.obstacle(
        tmp_path / "a"
    )
    assert durable.obstacle(tmp_path / "no" / "x") == f"{tmp_path / 'no'} is not an existing folder"


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")

    def fails(unfinished: Path) -> None:
        unfinished.write_text("half")
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        durable.replace(path, fails)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "out", "link"])
def test_what_the_process_prints_to_is_not_replaced(name: str, tmp_path: Path) -> None:
    """With `> out` the shell's file would lose its name, and all that is printed with it."""
    (tmp_path / "link").symlink_to("out")
    code = f"from pathlib import Path; from mlx_pam import durable; x = Path({name!r}); "
    code += "print(durable.obstacle(x))"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, cwd=tmp_path, check=True)
    assert "it is a stream of this process" in (tmp_path / "out").read_text()


def test_a_pipe_behind_dev_stdout_is_named() -> None:
    code = "from pathlib import Path; from mlx_pam import durable; "
    code += "print(durable.obstacle(Path('/dev/stdout')))"
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout
    assert b"it is a named pipe" in said
