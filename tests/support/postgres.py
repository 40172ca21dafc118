"""A real PostgreSQL for tests: Debian's package, a new cluster on a Unix socket, no network.

`postgres()` starts one for the whole process, which ends with it. Its programs are looked for in
/usr/lib/postgresql; `make test` installs them. `LosingProxy` stands before it and loses one answer.
"""

import atexit
import functools
import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import closing, suppress
from pathlib import Path

import psycopg
from psycopg.pq import ExecStatus

from tests.support.patience import wait_until

PASSWORD = "pass:word/@%"
_DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.EMPTY_QUERY)


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
        # The shell outlives no end of this process, however that comes: its stdin closes with it.
        script = (
            f"'{programs}/postgres' -D '{data}' -k '{self.directory}' -c listen_addresses= "
            f"-c fsync=off > '{self.directory}/log' 2>&1 & cat > /dev/null; kill -QUIT $!; wait; "
            f"rm -rf '{self.directory}'"
        )
        self._server = subprocess.Popen(
            ["sh", "-c", script], stdin=subprocess.PIPE, cwd=self.directory, user=self._account
        )
        wait_until(
            lambda: not self._try(programs / "pg_isready", "-h", self.directory).returncode,
            lambda: Path(self.directory, "log").read_text(),
            pause_s=0.05,
        )

    @property
    def url(self) -> str:
        return self.url_by(self.directory)

    def url_by(self, directory: str) -> str:
        """The URL by way of a socket in another directory."""
        return f"postgresql://loader:pass%3Aword%2F%40%25@/postgres?host={directory}"

    def query(self, statement: str) -> list[list[str]]:
        """The rows of the last of some statements, as the server writes them: columns as text, null
        as nothing."""
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            found = connection.pgconn.exec_(statement.encode())
        assert found.status in _DONE, found.error_message.decode()
        return [
            [(found.get_value(row, column) or b"").decode() for column in range(found.nfields)]
            for row in range(found.ntuples)
        ]

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


class LosingProxy:
    """Passes connections on to `server`, and cuts the first one that commits after a COPY, in both
    directions: `before` the server hears of it, `while` it is at it, or `after` it has answered."""

    def __init__(self, server: Postgres, cut: str) -> None:
        self.cuts = 0
        self._cut = cut
        self._server = f"{server.directory}/.s.PGSQL.5432"
        self._directory = tempfile.mkdtemp(prefix="px-")
        self.url = server.url_by(self._directory)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(f"{self._directory}/.s.PGSQL.5432")
        self._door.listen()
        self._sockets = [self._door]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
        for one in self._sockets:
            one.close()
        shutil.rmtree(self._directory)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                server.connect(self._server)
                events = (threading.Event(), threading.Event())
                for run in (self._to_server, self._to_client):
                    arguments = (client, server, *events)
                    self._threads.append(threading.Thread(target=run, args=arguments, daemon=True))
                    self._threads[-1].start()

    def _to_server(
        self,
        client: socket.socket,
        server: socket.socket,
        is_cut: threading.Event,
        has_answered: threading.Event,
    ) -> None:
        has_copied = False
        with suppress(OSError):
            while data := client.recv(65536):
                has_copied |= b"COPY " in data
                if has_copied and b"COMMIT" in data and not self.cuts:
                    self.cuts += 1
                    is_cut.set()
                    if self._cut != "before":
                        server.sendall(data)
                    if self._cut == "after":
                        has_answered.wait(60)
                    client.shutdown(socket.SHUT_RDWR)
                    break
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _to_client(
        self,
        client: socket.socket,
        server: socket.socket,
        is_cut: threading.Event,
        has_answered: threading.Event,
    ) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if is_cut.is_set():
                    has_answered.set()
                    break
                client.sendall(data)
            if not is_cut.is_set():
                client.shutdown(socket.SHUT_RDWR)


@functools.cache
def postgres() -> Postgres:
    server = Postgres()
    atexit.register(server.stop)
    return server
