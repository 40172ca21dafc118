"""A real PostgreSQL for tests: Debian's package, a new cluster on a Unix socket, no network.

`postgres()` starts one for the whole process, which ends with it. Its programs are looked for in
/usr/lib/postgresql; `make test` installs them.
"""

import atexit
import functools
import glob
import os
import pwd
import subprocess
import tempfile
import time
from pathlib import Path

PASSWORD = "pass:word/@%"


class Postgres:
    """A running server; `url` is what `sql:` targets take."""

    def __init__(self) -> None:
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
        assert found, "PostgreSQL is not installed: apt-get install postgresql"
        programs = Path(found[-1]).parent
        # PostgreSQL does not run as root.
        self._account = "postgres" if os.geteuid() == 0 else None
        # Short, because the path of a socket may have 107 bytes only.
        self.directory = tempfile.mkdtemp(prefix="pg-")
        if self._account:
            account = pwd.getpwnam(self._account)
            os.chown(self.directory, account.pw_uid, account.pw_gid)
        os.chmod(self.directory, 0o755)
        password = os.path.join(self.directory, "password")
        Path(password).write_text(PASSWORD)
        os.chmod(password, 0o644)
        data = os.path.join(self.directory, "data")
        self._run(
            *(programs / "initdb", "-D", data, "-U", "loader", "--no-sync", "-E", "UTF8"),
            *("--auth=scram-sha-256", f"--pwfile={password}", "--locale=C"),
        )
        self._psql = programs / "psql"
        # The shell outlives no end of this process, however that comes: its stdin closes with it.
        script = (
            f"'{programs}/postgres' -D '{data}' -k '{self.directory}' -c listen_addresses= "
            f"-c fsync=off > '{self.directory}/log' 2>&1 & cat > /dev/null; kill -QUIT $!; wait; "
            f"rm -rf '{self.directory}'"
        )
        self._server = subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.PIPE, cwd=self.directory, user=self._account
        )
        deadline = time.monotonic() + 60
        while self._try(programs / "pg_isready", "-h", self.directory).returncode:
            assert time.monotonic() < deadline, Path(self.directory, "log").read_text()
            time.sleep(0.05)

    @property
    def url(self) -> str:
        return f"postgresql://loader:pass%3Aword%2F%40%25@/postgres?host={self.directory}"

    def query(self, statement: str) -> list[list[str]]:
        """The rows of a statement, as psql prints them: columns as text, null as nothing."""
        done = self._run(
            *(self._psql, "-h", self.directory, "-U", "loader", "-d", "postgres", "-XAtq"),
            *("-F", "\x1f", "-R", "\x1e", "-v", "ON_ERROR_STOP=1", "-c", statement),
        )
        text = done.stdout.rstrip("\n")
        return [line.split("\x1f") for line in text.split("\x1e")] if text else []

    def stop(self) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait(60)

    def _run(self, *command: object) -> "subprocess.CompletedProcess[str]":
        done = self._try(*command)
        assert done.returncode == 0, done.stdout
        return done

    def _try(self, *command: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.directory,
            env={**os.environ, "PGPASSWORD": PASSWORD, "HOME": self.directory},
            user=self._account,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )


@functools.cache
def postgres() -> Postgres:
    server = Postgres()
    atexit.register(server.stop)
    return server
