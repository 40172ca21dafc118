"""A real MariaDB for tests: Debian's package, new data, on a Unix socket, no network.

`mariadb()` starts one for the whole process, which ends with it. `make mariadb` installs it.
"""

import atexit
import functools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from tests.support.patience import wait_until

PASSWORD = "pass:word/@%"
_SETTINGS = (
    "--no-defaults",
    "--skip-networking",
    "--innodb-buffer-pool-size=32M",
    "--innodb-flush-log-at-trx-commit=2",
    "--innodb-flush-method=nosync",
    "--skip-log-bin",
    "--skip-name-resolve",
    # As careless as servers are: a session has to say that it is strict.
    "--sql-mode=",
    "--default-storage-engine=MyISAM",
    "--character-set-server=latin1",
    "--default-time-zone=+05:00",
)


class MariaDb:
    """A running server with the settings of _SETTINGS and others."""

    def __init__(self, *settings: str) -> None:
        assert shutil.which("mariadbd"), "MariaDB is not installed: apt-get install mariadb-server"
        self._account = "mysql" if os.geteuid() == 0 else None
        self.directory = tempfile.mkdtemp(prefix="maria-")
        if self._account:
            account = pwd.getpwnam(self._account)
            os.chown(self.directory, account.pw_uid, account.pw_gid)
        os.chmod(self.directory, 0o755)
        self.socket = f"{self.directory}/socket"
        data = f"{self.directory}/data"
        done = subprocess.run(
            [
                *("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db"),
                *("--auth-root-authentication-method=normal", "--skip-name-resolve"),
            ],
            **self._here(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        # The shell outlives no end of this process, however that comes: its stdin closes with it.
        script = (
            f"mariadbd {' '.join((*_SETTINGS, *settings))} --datadir='{data}' "
            f"--socket='{self.socket}' "
            f"--pid-file='{self.directory}/pid' > '{self.directory}/log' 2>&1 & "
            f"cat > /dev/null; kill -KILL $!; wait; rm -rf '{self.directory}'"
        )
        self._server = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, **self._here())
        wait_until(self._answers, lambda: Path(self.directory, "log").read_text(), pause_s=0.05)
        self.query(f"CREATE USER loader@'%' IDENTIFIED BY '{PASSWORD}'", user="root", password="")
        self.query("GRANT ALL ON *.* TO loader@'%'", user="root", password="")

    def url(self, database: str, user: str = "loader") -> str:
        place = f"/{database}?unix_socket={self.socket}"
        return f"mariadb://{user}:pass%3Aword%2F%40%25@{place}"

    def connect(self, **options: Any) -> Any:
        told = {"user": "loader", "password": PASSWORD, **options}
        return pymysql.connect(
            unix_socket=self.socket,
            charset="utf8mb4",
            autocommit=True,
            init_command="SET time_zone = '+00:00', sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES', "
            "default_storage_engine = InnoDB",
            client_flag=CLIENT.MULTI_STATEMENTS,
            **told,
        )

    def query(self, statement: str, **options: Any) -> Sequence[tuple[Any, ...]]:
        """The rows of the last of some statements, as the driver gives them."""
        with closing(self.connect(**options)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            found: Sequence[tuple[Any, ...]] = cursor.fetchall()
            while cursor.nextset():
                found = cursor.fetchall()
            return found

    def stop(self) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait(60)

    def _answers(self) -> bool:
        if not os.path.exists(self.socket):
            return False
        with suppress(pymysql.err.OperationalError):
            self.query("SELECT 1", user="root", password="")
            return True
        return False

    def _here(self) -> dict[str, Any]:
        return {"cwd": self.directory, "user": self._account}


@functools.cache
def mariadb(*settings: str) -> MariaDb:
    server = MariaDb(*settings)
    atexit.register(server.stop)
    return server
