"""A prompt with images, in vLLM's form.

The chat template puts a marker where an image is. vLLM's processor of the model replaces it by the
image's tokens and converts the pixels to the model's input. So the prompt's ids include the images,
and accepted ids of former attempts follow as in any prompt.
"""

from __future__ import annotations

import base64
import hashlib
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tailrace.protocol import images, records
from worker.engines import base

MAX_IMAGES: Final = 16  # of one prompt; as the gateway allows

# Arguments of the engine. vLLM's cache of processed images is in two processes. A prompt that is
# encoded and never run would leave an entry in one of them only.
ARGUMENTS: Final[Mapping[str, Any]] = {
    "limit_mm_per_prompt": {"image": MAX_IMAGES, "video": 0, "audio": 0},
    "mm_processor_cache_gb": 0,
}


def reads_images(model_config: Any) -> bool:
    """Whether the model reads images. `model_config`: vLLM's."""
    return bool(model_config.supports_multimodal_inputs)


def prompt(renderer: Any, ids: Sequence[int], request: records.Request) -> dict[str, Any]:
    """vLLM's input for a request with images. Takes time; call it in a thread.

    Args:
        renderer: vLLM's. Nothing else may use it meanwhile.
        ids: of the rendered messages, with one marker for each image.

    Raises:
        Refused: an image cannot be decoded, or the model does not accept it.
    """
    parts = list(images.parts(request.messages))
    scope = request.owner.cache_scope
    raw_input = {
        "prompt_token_ids": list(ids),
        "multi_modal_data": {"image": [decode(part) for part in parts]},
        # vLLM caches the model's encoding of an image under this name. Its timing, and that of the
        # prefix cache, would reveal one tenant's prompts to another.
        "multi_modal_uuids": {"image": [_name(scope, part["sha256"]) for part in parts]},
        "cache_salt": scope,
    }
    try:
        engine_input = dict(renderer.process_for_engine(raw_input, time.time()))
    except Exception as error:  # processors raise any type
        raise base.Refused(
            "invalid_prompt", f"The model does not take these images: {type(error).__name__}"
        ) from error
    _check_places(engine_input, renderer.model_config.hf_config)
    return engine_input


def _check_places(engine_input: Mapping[str, Any], config: Any) -> None:
    """Check that images are only where the messages have them. vLLM puts them at the first markers,
    and a text may contain one.

    Raises:
        Refused: a marker is left over.
    """
    names = ("image_token_id", "image_token_index")
    marker = next((t for n in names if (t := getattr(config, n, None)) is not None), None)
    ids = engine_input["prompt_token_ids"]
    markers = {at for at, token in enumerate(ids) if token == marker}
    for place in engine_input["mm_placeholders"]["image"]:
        markers.difference_update(range(place.offset, place.offset + place.length))
    if markers:
        raise base.Refused("invalid_prompt", "A text contains the model's marker for images.")


def decode(part: Mapping[str, Any]) -> Any:
    """The picture (of PIL) that an image part shows: the first one, where it has several.

    Raises:
        Refused: the part has no file, or the file is not an image of the size in its header.
    """
    from PIL import Image

    if "data" not in part:
        raise base.Refused("invalid_image", "An image is not in the request.")
    try:
        with Image.open(io.BytesIO(base64.b64decode(part["data"]))) as picture:
            # Known before decoding, which costs memory by the size.
            if picture.size != (part["width"], part["height"]):
                raise ValueError("size")
            return picture.convert("RGB")
    except Exception as error:  # decoders raise any type
        raise base.Refused("invalid_image", "An image could not be decoded.") from error


def _name(scope: str, digest: str) -> str:
    return hashlib.blake2b(f"{scope} {digest}".encode(), digest_size=16).hexdigest()
