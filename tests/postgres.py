"""A real PostgreSQL for tests: Debian's package, a new cluster on a Unix socket, no network.

`postgres()` starts one for the whole process, which ends with it. Its programs are looked for in
/usr/lib/postgresql; `make test` installs them.
"""

import atexit
import functools
import getpass
import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

PASSWORD = "pass:word/@%"


class Postgres:
    """A running server; `url` is what `sql:` targets take."""

    def __init__(self) -> None:
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
        assert found, "PostgreSQL is not installed: apt-get install postgresql"
        programs = Path(found[-1]).parent
        # PostgreSQL does not run as root.
        self._user = "postgres" if os.geteuid() == 0 else getpass.getuser()
        # Short, because the path of a socket may have 107 bytes only.
        self.directory = tempfile.mkdtemp(prefix="pg-")
        if os.geteuid() == 0:
            account = pwd.getpwnam(self._user)
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
        options = f"-k {self.directory} -c listen_addresses= -c fsync=off"
        log = os.path.join(self.directory, "log")
        self._control = [programs / "pg_ctl", "-D", data, "-w"]
        self._run(*self._control, "-o", options, "-l", log, "start")
        self._psql = str(programs / "psql")

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
        self._run(*self._control, "-m", "immediate", "stop")
        shutil.rmtree(self.directory)

    def _run(self, *command: object) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.directory,
            env={**os.environ, "PGPASSWORD": PASSWORD, "HOME": self.directory},
            user=self._user if os.geteuid() == 0 else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout
        return done


@functools.cache
def postgres() -> Postgres:
    server = Postgres()
    atexit.register(server.stop)
    return server
