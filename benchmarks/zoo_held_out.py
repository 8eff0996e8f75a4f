"""Architectures that were not used while the rules of `initialize_` were written and tuned.

They joined the zoo afterwards, to show what happens on models nobody looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zoo_models import Built, images, module, tokens

HELD_OUT: dict[str, Callable[[], Built]] = {}
"""Builders by "package/model"; one raises ImportError where the package is missing."""


def held_out(name: str) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        HELD_OUT[name] = build
        return build

    return register


def _timm(name: str, size: int, **options: Any) -> Callable[[], Built]:
    return lambda: (
        module("timm").create_model(name, num_classes=100, **options),
        images(size),
    )


HELD_OUT.update(
    {
        f"timm/{name}": _timm(name, size, **options)
        for name, size, options in (
            ("mobilevit_xxs", 64, {}),
            ("edgenext_xx_small", 64, {}),
            ("davit_tiny", 64, {"depths": (1, 1, 2, 1)}),
            ("levit_128s", 224, {}),
            ("dla34", 64, {}),
            ("rexnet_100", 64, {}),
            ("inception_next_tiny", 64, {"depths": (1, 1, 2, 1)}),
            ("beit_base_patch16_224", 64, {"img_size": 64, "depth": 4}),
            ("hgnet_tiny", 64, {}),
        )
    }
)


@held_out("torchvision/mobilenet_v2")
def _mobilenet() -> Built:
    return module("torchvision.models").get_model("mobilenet_v2", num_classes=100), images(64)


@held_out("torchvision/deeplabv3")
def _deeplab() -> Built:
    segmentation = module("torchvision.models.segmentation")
    return segmentation.deeplabv3_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=8
    ), images(64)


@held_out("torchvision/r3d_18")
def _video() -> Built:
    model = module("torchvision.models.video").r3d_18(num_classes=100)
    return model, lambda: torch.randn(2, 3, 8, 32, 32)


_TEXT = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128,
    "vocab_size": 200,
}  # fmt: skip


def _language(model: str, config: str, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        transformers = module("transformers")
        built = getattr(transformers, model)(getattr(transformers, config)(**options))
        return built, lambda: {"input_ids": tokens(200)}

    return build


HELD_OUT.update(
    {
        "transformers/albert": _language(
            "AlbertForMaskedLM", "AlbertConfig", **_TEXT, embedding_size=32
        ),
        "transformers/bloom": _language(
            "BloomForCausalLM", "BloomConfig", hidden_size=64, n_layer=4, n_head=4, vocab_size=200
        ),
        "transformers/distilbert": _language(
            "DistilBertForMaskedLM", "DistilBertConfig",
            dim=64, n_layers=4, n_heads=4, hidden_dim=128, vocab_size=200,
        ),
        "transformers/gemma2": _language(
            "Gemma2ForCausalLM", "Gemma2Config",
            **_TEXT, num_key_value_heads=2, head_dim=16, pad_token_id=0,
        ),
        "transformers/phi": _language("PhiForCausalLM", "PhiConfig", **_TEXT),
        "transformers/rwkv": _language(
            "RwkvForCausalLM", "RwkvConfig", hidden_size=64, num_hidden_layers=3, vocab_size=200
        ),
    }
)  # fmt: skip


@held_out("transformers/segformer")
def _segformer() -> Built:
    transformers = module("transformers")
    config = transformers.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 64], decoder_hidden_size=64, num_labels=8
    )
    make = images(64)
    return transformers.SegformerForSemanticSegmentation(config), lambda: {"pixel_values": make()}


@held_out("diffusers/autoencoder-kl")
def _autoencoder() -> Built:
    model = module("diffusers").AutoencoderKL(
        block_out_channels=(32, 64), norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    make = images(32, batch=4)
    return model, lambda: {"sample": make()}


@held_out("monai/unetr")
def _unetr() -> Built:
    model = module("monai.networks.nets").UNETR(
        1, 4, (32, 32), feature_size=8, hidden_size=64, mlp_dim=128, num_heads=4, spatial_dims=2
    )
    return model, images(32, 1)


@held_out("torch-geometric/gin")
def _isomorphism() -> Built:
    edges = torch.randint(0, 64, (2, 256), generator=torch.Generator().manual_seed(0))
    model = module("torch_geometric.nn").GIN(16, 64, num_layers=4, out_channels=16)
    return model, lambda: {"x": torch.randn(64, 16), "edge_index": edges}


@held_out("conformer/conformer")
def _conformer() -> Built:
    model = module("conformer").Conformer(64, depth=3, dim_head=16, heads=4)
    return model, lambda: torch.randn(4, 32, 64)


@held_out("vit-pytorch/max-vit")
def _max_vit() -> Built:
    model = module("vit_pytorch.max_vit").MaxViT(
        num_classes=100, dim_conv_stem=16, dim=32, dim_head=16, depth=(1, 1), window_size=4
    )
    return model, images(64)
