"""Packages come by their names, as the machine is set up (mirrors, caches): no file names the host of a registry."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOST = re.compile(r"(?<![\w@.\-/])(?:https?://)?((?:[a-z0-9-]+\.)+(?:org|com|io|dev|cloud))(?![\w.(:])")
FINE = {
    "ant.apache.org": "the name of an XML schema",
    "www.w3.org": "the name of an XML schema",
    "www.apache.org": "the license",
    "arxiv.org": "the paper",
    "example.com": "nobody's",
    **dict.fromkeys(("pyiceberg.io", "table.io", "self.io", "log.io", "_table.io"), "a name in Python"),
    "db.example.com": "nobody's",
    **dict.fromkeys(
        (
            "app.kubernetes.io",
            "kubernetes.io",
            "kustomize.config.k8s.io",
            "networking.k8s.io",
            "node.kubernetes.io",
            "pod-security.kubernetes.io",
            "rbac.authorization.k8s.io",
        ),
        "a group of names of Kubernetes",
    ),
}
FOLDERS = ("src", "tests", "scripts", "docs", "bench", "examples", "deploy", ".ci", ".github")
KINDS = {".py", ".sh", ".md", ".toml", ".svg", ".yml", ".yaml", ".json", ".service", ""}


def hosts(text: str) -> set[str]:
    return set(HOST.findall(text)) - set(FINE)


def test_no_file_names_the_host_of_a_registry() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")] + list(ROOT.iterdir())
    read = [p for p in files if p.is_file() and p.suffix in KINDS and "__pycache__" not in p.parts]
    assert len(read) > 300
    found = {str(path.relative_to(ROOT)): hosts(path.read_text("utf-8", "replace")) for path in read}
    assert {name: named for name, named in found.items() if named and name != "tests/unit/test_hosts.py"} == {}


def test_hosts_are_found() -> None:
    assert hosts('fetch("https://packages.acme.org/x")') == hosts('("packages.acme.org", 443)') == {"packages.acme.org"}
