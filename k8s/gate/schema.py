"""Every resource against a schema: built-in kinds against Kubernetes' own (strict), operators'
kinds against the subsets in k8s/schemas."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import referencing
import yaml

from k8s.gate.manifests import Doc, Manifests, Verdict, subject

KUBERNETES = "1.37"
# Of a DNS subdomain. The API server refuses every other one, except of these.
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LOOSELY_NAMED = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
_SUBSETS = Path(__file__).resolve().parents[1] / "schemas"


def _schema_folder() -> Any:
    """The schemas of `kubernetes_validate`, read directly, because its own call loads 2 MB of
    definitions for every resource."""
    return resources.files("kubernetes_validate").joinpath(
        "kubernetes-json-schema", f"v{KUBERNETES}.0-local-strict"
    )


@functools.cache
def _registry() -> referencing.Registry[Any]:
    definitions = referencing.Resource.from_contents(
        json.loads(_schema_folder().joinpath("_definitions.json").read_text())
    )
    return definitions @ referencing.Registry()


@functools.cache
def _builtin(api_version: str, kind: str) -> jsonschema.Draft202012Validator | None:
    group, _, version = api_version.rpartition("/")
    short = (
        [group.split(".")[0]] if group else []
    )  # rbac.authorization.k8s.io/v1 is kept as rbac-v1
    file = _schema_folder().joinpath("-".join([kind.lower(), *short, version]) + ".json")
    if not file.is_file():
        return None
    schema = json.loads(file.read_text())
    return jsonschema.Draft202012Validator(
        schema, registry=referencing.Resource.from_contents(schema) @ _registry()
    )


@functools.cache
def _subsets() -> dict[tuple[str, str], jsonschema.Draft202012Validator]:
    validators = {}
    for file in sorted(_SUBSETS.glob("*.yaml")):
        group = yaml.safe_load(file.read_text())
        for kind, spec in group["kinds"].items():
            schema = {
                "type": "object",
                "required": ["apiVersion", "kind", "metadata", "spec"],
                "additionalProperties": False,
                "properties": {
                    "apiVersion": {"const": group["apiVersion"]},
                    "kind": {"const": kind},
                    "metadata": {
                        "$ref": "https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
                    },
                    "spec": spec,
                },
            }
            jsonschema.Draft202012Validator.check_schema(schema)
            validators[group["apiVersion"], kind] = jsonschema.Draft202012Validator(
                schema, registry=_registry()
            )
    return validators


def _problem(doc: Doc) -> str:
    key = (doc["apiVersion"], doc["kind"])
    validator = _subsets().get(key) or _builtin(*key)
    if validator is None:
        return f"no schema for {key[0]} {key[1]}"
    if doc["kind"] not in _LOOSELY_NAMED and not _NAME.fullmatch(doc["metadata"]["name"]):
        return f"{doc['metadata']['name']} is no name of a resource"
    error = jsonschema.exceptions.best_match(validator.iter_errors(doc))
    return f"{error.json_path}: {error.message[:300]}" if error else ""


def valid(m: Manifests) -> Iterator[Verdict]:
    """Report misspelt fields, wrong types and wrong enumeration values."""
    for doc in m.docs:
        yield Verdict(subject(doc), _problem(doc))
