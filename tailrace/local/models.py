"""Find the model: from the option, the settings in its folder, or the engine at a URL."""

from __future__ import annotations

import json
from pathlib import Path

import httpx

from tailrace import engines
from tailrace.local import paths, plan, processes


def in_folder(folder: Path, name: str) -> plan.Model:
    """A model folder, with the sampling of its generation_config.json where it has one."""
    try:
        defaults = json.loads((folder / "generation_config.json").read_text())
        temperature, top_p = (
            float(defaults.get("temperature") or 1.0),
            float(defaults.get("top_p") or 1.0),
        )
    except (OSError, ValueError, TypeError, AttributeError):
        temperature, top_p = 1.0, 1.0
    return plan.Model(
        str(folder),
        name,
        context_length(folder),
        min(max(temperature, 0.0), 2.0),
        top_p if 0 < top_p <= 1 else 1.0,
    )


def context_length(folder: Path) -> int:
    """`max_position_embeddings` of a model folder, at most plan.MAX_MODEL_LEN tokens."""
    try:
        config = json.loads((folder / "config.json").read_text())
        return min(int(config["max_position_embeddings"]), plan.MAX_MODEL_LEN)
    except (OSError, ValueError, KeyError, TypeError):
        return plan.MAX_MODEL_LEN


def list_models(base: str) -> list[str]:
    """Model names at an OpenAI-compatible base URL.

    Raises:
        StartError: no such server answers there.
    """
    address = f"{base.rstrip('/')}/models"
    try:
        answer = httpx.get(address, timeout=5)
        answer.raise_for_status()
        return [str(entry["id"]) for entry in answer.json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise processes.StartError(
            f"the engine at {base} does not answer GET {address} as an OpenAI-compatible "
            f"server ({error}); give the URL up to /v1, and --model"
        ) from error


def resolve(engine: str, model: str) -> plan.Model:
    """The model for an engine. `model` is a name, a folder, or empty for the engine's default.

    Raises:
        StartError: the engine has no such model.
    """
    model_from = plan.engine_kind(engine).model_from
    if model_from is engines.ModelFrom.NOWHERE:
        # The default model's name, so that clients of the default model work unchanged.
        return plan.Model(engine, model or paths.MODEL)
    if model_from is engines.ModelFrom.SERVER:
        name = model or next(iter(list_models(engine)), "")
        if not name:
            raise processes.StartError(
                f"the engine at {engine} offers no model; load one there, or name one with --model"
            )
        return plan.Model(name, name)
    if not model or model == paths.MODEL:
        folder = paths.model()
        if not (folder / "config.json").exists():
            raise processes.StartError(
                f"the model is not in {folder}: run `make install`, or give one with --model"
            )
        return in_folder(folder, paths.MODEL)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return in_folder(folder.resolve(), plan.public_name(str(folder.resolve())))
    if model.startswith(("/", "./", "../", "~")):
        raise processes.StartError(f"--model {model}: no such folder")
    return plan.Model(model, plan.public_name(model))
