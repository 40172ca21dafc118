"""An Azure Blob server on loopback for tests: Azurite, Microsoft's own, in memory.

It lies in `$KAFKALOG_PEERS/azurite` (`make .peers/azurite`). `azure()` starts one server for the
whole process, which ends with it.
"""

import atexit
import base64
import functools
import os
import subprocess

from obstore.fsspec import FsspecStore
from obstore.store import AzureStore
from pyarrow.fs import AzureFileSystem, FileSystem, FSSpecHandler, PyFileSystem

from tests.support.jvm import PEERS
from tests.support.patience import wait_until
from tests.support.ports import free_ports

CONTAINER = "lake"
_ACCOUNT = "loader"
# In the environment before Spark starts, whose workers have it from there.
_KEY = base64.b64encode(b"sesame/+&").decode()
os.environ["AZURE_STORAGE_ACCOUNT_NAME"] = _ACCOUNT
os.environ["AZURE_STORAGE_ACCOUNT_KEY"] = _KEY


class AzureServer:
    """A running server with one empty container."""

    def __init__(self) -> None:
        program = PEERS / "azurite/node_modules/azurite/dist/src/blob/main.js"
        assert program.is_file(), f"no Azurite in {PEERS}: make .peers/azurite"
        self._address = f"127.0.0.1:{free_ports(1)[0]}"
        self.endpoint = f"http://{self._address}/{_ACCOUNT}"
        port = self._address.rpartition(":")[2]
        options = ["--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--blobPort", port]
        # The shell outlives no end of this process, however that comes: its stdin closes with it.
        script = '"$@" > /dev/null 2>&1 < /dev/null & read signal; kill -KILL $!; wait'
        self._process = subprocess.Popen(
            ["sh", "-c", script, "sh", "node", str(program), *options],
            stdin=subprocess.PIPE,
            env=os.environ | {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"},
        )
        wait_until(self._has_container, "Azurite")

    def store(self) -> AzureStore:
        return AzureStore(CONTAINER, endpoint=self.endpoint, client_options={"allow_http": True})

    def files(self) -> FileSystem:
        """To be read: Arrow's own client (26.0) takes long answers for connections that broke."""
        store = FsspecStore("abfs", endpoint=self.endpoint, client_options={"allow_http": True})
        return PyFileSystem(FSSpecHandler(store))

    def url(self, prefix: str) -> str:
        """A place in the container, as `parquet:` targets take it."""
        return f"abfs://{CONTAINER}/{prefix}?endpoint={self.endpoint}"

    def stop(self) -> None:
        self._process.communicate(b"")

    def _has_container(self) -> bool:
        try:
            AzureFileSystem(
                _ACCOUNT,
                account_key=_KEY,
                blob_storage_authority=self._address,
                blob_storage_scheme="http",
                dfs_storage_authority=self._address,
                dfs_storage_scheme="http",
            ).create_dir(CONTAINER)
        except OSError:
            return False
        return True


@functools.cache
def azure() -> AzureServer:
    server = AzureServer()
    atexit.register(server.stop)
    return server
