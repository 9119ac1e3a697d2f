"""Files of a sidecar are for its owner alone, whatever was there before."""

import os
import stat

import pytest

from monitor.store.files import private


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_file_that_was_open_to_others_is_closed_to_them_when_it_is_written(tmp_path, umask):
    path, before = tmp_path / "file", os.umask(umask)
    try:
        for _ in range(2):
            with open(path, "ab", opener=private) as file:
                file.write(b"x")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            path.chmod(0o666)
        (tmp_path / "link").symlink_to(path)
        with pytest.raises(OSError, match="symbolic links"):
            private(str(tmp_path / "link"), os.O_WRONLY)
    finally:
        os.umask(before)
