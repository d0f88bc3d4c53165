"""Xet storage of the local hub: a folder that the client's own library writes and reads as `local://FOLDER`.

The library takes it for a storage server, so that all but the network of the real path is exercised.
"""

import threading
from pathlib import Path


class HubXet:
    def __init__(self, folder: Path) -> None:
        self._storage = f"local://{folder}"
        self.endpoint = self._storage
        """What clients are told; another than the storage's own stands for one that fails."""
        self.access_token = "xet-access"
        self._hashes: dict[str, str] = {}
        self._writing = threading.Lock()

    def hash_of(self, sha256: str, blob: Path) -> str:
        """What xet calls the content, which is stored first where it is new."""
        from hf_xet import XetSession  # type: ignore[import-untyped]

        with self._writing:
            if sha256 not in self._hashes:
                with XetSession().new_upload_commit(endpoint=self._storage) as commit:
                    upload = commit.start_upload_file(str(blob))
                self._hashes[sha256] = upload.result().xet_info.hash
            return self._hashes[sha256]
