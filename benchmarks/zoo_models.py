"""Architectures of other packages, small and with random weights, each with a batch to run on.

Every entry builds without downloads. What is small is depth, width and image; the architecture is
the package's own.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

if "torchvision" not in sys.modules:
    # Its compiled half needs the torch it was built for; the models are all in the other half.
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("stub")

Built = tuple[nn.Module, Callable[[], Any]]
"""A model, and what makes a new batch for it: a tensor, or keyword arguments."""

ZOO: dict[str, Callable[[], Built]] = {}
"""Builders by "package/model"; one raises ImportError where the package is missing."""


def entry(name: str) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        ZOO[name] = build
        return build

    return register


def module(name: str) -> Any:
    """A module of a package that may be missing."""
    return importlib.import_module(name)


def images(size: int, channels: int = 3, batch: int = 8) -> Callable[[], Tensor]:
    return lambda: torch.randn(batch, channels, size, size)


def tokens(vocabulary: int, length: int = 16, batch: int = 8) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length))


# timm

_TIMM: dict[str, dict[str, Any]] = {
    "resnet18": {"size": 64},
    "resnet50": {"size": 64},
    "convnext_atto": {"size": 64},
    "convnextv2_atto": {"size": 64},
    "vit_tiny_patch16_224": {"size": 64, "img_size": 64, "depth": 6},
    "deit3_small_patch16_224": {"size": 64, "img_size": 64, "depth": 4},
    "cait_xxs24_224": {"size": 64, "img_size": 64, "depth": 6},
    "mixer_s32_224": {"size": 64, "img_size": 64},
    "resmlp_12_224": {"size": 64, "img_size": 64},
    "swin_tiny_patch4_window7_224": {"size": 56, "img_size": 56, "depths": (2, 2, 2, 2)},
    "efficientnet_b0": {"size": 64},
    "mobilenetv3_small_100": {"size": 64},
    "nf_resnet26": {"size": 64},
    "densenet121": {"size": 64},
    "regnetx_002": {"size": 64},
    "poolformer_s12": {"size": 64},
    "repvgg_a0": {"size": 64},
    "ghostnet_100": {"size": 64},
    "eva02_tiny_patch14_224": {"size": 56, "img_size": 56, "depth": 4},
    "xcit_nano_12_p16_224": {"size": 64},
}


def _timm(name: str, size: int, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        timm = module("timm")

        return timm.create_model(name, num_classes=100, **options), images(size)

    return build


ZOO.update({f"timm/{name}": _timm(name, **options) for name, options in _TIMM.items()})


# torchvision


def _torchvision(name: str, size: int, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        models = module("torchvision.models")
        return models.get_model(name, num_classes=100, **options), images(size)

    return build


ZOO.update(
    {
        f"torchvision/{name}": _torchvision(name, size, **options)
        for name, size, options in (
            ("alexnet", 96, {}),
            ("vgg11", 64, {}),
            ("squeezenet1_1", 96, {}),
            ("googlenet", 96, {"init_weights": False, "aux_logits": False}),
            ("shufflenet_v2_x0_5", 64, {}),
            ("mnasnet0_5", 64, {}),
        )
    }
)


# transformers

_SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
_WIDE = {**_SMALL, "intermediate_size": 128, "vocab_size": 200}


def _language(model: str, config: str, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        transformers = module("transformers")

        built = getattr(transformers, model)(getattr(transformers, config)(**options))
        return built, lambda: {"input_ids": tokens(options.get("vocab_size", 200))}

    return build


ZOO.update(
    {
        f"transformers/{name}": _language(model, config, **options)
        for name, model, config, options in (
            (
                "gpt2",
                "GPT2LMHeadModel",
                "GPT2Config",
                {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 200},
            ),
            ("llama", "LlamaForCausalLM", "LlamaConfig", {**_WIDE, "num_key_value_heads": 2}),
            (
                "mixtral",
                "MixtralForCausalLM",
                "MixtralConfig",
                {**_WIDE, "num_key_value_heads": 2, "num_local_experts": 4},
            ),
            ("mamba", "MambaForCausalLM", "MambaConfig", {**_SMALL, "vocab_size": 200}),
            ("bert", "BertForMaskedLM", "BertConfig", _WIDE),
            (
                "opt",
                "OPTForCausalLM",
                "OPTConfig",
                {
                    "hidden_size": 64,
                    "num_hidden_layers": 4,
                    "num_attention_heads": 4,
                    "ffn_dim": 128,
                    "vocab_size": 200,
                    "word_embed_proj_dim": 64,
                },
            ),
            ("gptneox", "GPTNeoXForCausalLM", "GPTNeoXConfig", _WIDE),
            ("qwen2", "Qwen2ForCausalLM", "Qwen2Config", {**_WIDE, "num_key_value_heads": 2}),
            ("deberta-v2", "DebertaV2ForMaskedLM", "DebertaV2Config", _WIDE),
        )
    }
)


@entry("transformers/t5")
def _t5() -> Built:
    transformers = module("transformers")

    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4, vocab_size=200
    )
    model = transformers.T5ForConditionalGeneration(config)
    return model, lambda: {"input_ids": tokens(200), "decoder_input_ids": tokens(200)}


@entry("transformers/whisper")
def _whisper() -> Built:
    transformers = module("transformers")

    config = transformers.WhisperConfig(
        d_model=64, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=200,
        num_mel_bins=20, max_source_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    return model, lambda: {
        "input_features": torch.randn(4, 20, 64),
        "decoder_input_ids": tokens(200, batch=4),
    }


@entry("transformers/vit")
def _hugging_face_vit() -> Built:
    transformers = module("transformers")

    config = transformers.ViTConfig(**_SMALL, intermediate_size=128, image_size=64, num_labels=100)
    make = images(64)
    return transformers.ViTForImageClassification(config), lambda: {"pixel_values": make()}


@entry("transformers/wav2vec2")
def _wav2vec2() -> Built:
    transformers = module("transformers")

    config = transformers.Wav2Vec2Config(
        **_SMALL, intermediate_size=128, conv_dim=(32, 32, 32), conv_stride=(5, 4, 4),
        conv_kernel=(10, 8, 4), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        vocab_size=32,
    )  # fmt: skip
    model = transformers.Wav2Vec2ForCTC(config)
    return model, lambda: {"input_values": torch.randn(4, 4000)}


# Segmentation, vision transformers and others


@entry("segmentation-models-pytorch/unet")
def _smp_unet() -> Built:
    smp = module("segmentation_models_pytorch")

    return smp.Unet("resnet18", encoder_weights=None, classes=8), images(64)


@entry("segmentation-models-pytorch/fpn")
def _smp_fpn() -> Built:
    smp = module("segmentation_models_pytorch")

    return smp.FPN("resnet18", encoder_weights=None, classes=8), images(64)


@entry("vit-pytorch/vit")
def _vit_pytorch() -> Built:
    ViT = module("vit_pytorch").ViT

    options = {"dim": 64, "depth": 4, "heads": 4, "mlp_dim": 128}
    return ViT(image_size=64, patch_size=16, num_classes=100, **options), images(64)


@entry("vit-pytorch/simple-vit")
def _simple_vit() -> Built:
    SimpleViT = module("vit_pytorch").SimpleViT

    options = {"dim": 64, "depth": 4, "heads": 4, "mlp_dim": 128}
    return SimpleViT(image_size=64, patch_size=16, num_classes=100, **options), images(64)


@entry("vit-pytorch/cct")
def _cct() -> Built:
    CCT = module("vit_pytorch.cct").CCT

    return CCT(
        img_size=(64, 64), embedding_dim=64, n_conv_layers=2, kernel_size=7, stride=2, padding=3,
        num_layers=4, num_heads=4, mlp_ratio=2.0, num_classes=100,
    ), images(64)  # fmt: skip


@entry("x-transformers/decoder")
def _x_transformers() -> Built:
    Decoder = module("x_transformers").Decoder
    TransformerWrapper = module("x_transformers").TransformerWrapper

    layers = Decoder(dim=64, depth=4, heads=4, rotary_pos_emb=True, ff_glu=True)
    model = TransformerWrapper(num_tokens=200, max_seq_len=32, attn_layers=layers)
    return model, lambda: tokens(200)


@entry("pytorchcv/resnet10")
def _pytorchcv_resnet() -> Built:
    get_model = module("pytorchcv.model_provider").get_model

    return get_model("resnet10", pretrained=False), images(224, batch=4)


@entry("pytorchcv/bam-resnet18")
def _pytorchcv_squeeze() -> Built:
    get_model = module("pytorchcv.model_provider").get_model

    return get_model("bam_resnet18", pretrained=False), images(224, batch=4)


@entry("open-clip/text-image")
def _open_clip() -> Built:
    CLIP = module("open_clip.model").CLIP

    model = CLIP(
        embed_dim=64,
        vision_cfg={"image_size": 64, "layers": 3, "width": 64, "head_width": 16, "patch_size": 16},
        text_cfg={"context_length": 16, "vocab_size": 200, "width": 64, "heads": 4, "layers": 3},
    )
    make = images(64)
    return model, lambda: {"image": make(), "text": tokens(200)}


@entry("monai/unet")
def _monai_unet() -> Built:
    UNet = module("monai.networks.nets").UNet

    return UNet(2, 1, 4, channels=(16, 32, 64), strides=(2, 2), num_res_units=2), images(32, 1)


@entry("monai/segresnet")
def _monai_segresnet() -> Built:
    SegResNet = module("monai.networks.nets").SegResNet

    return SegResNet(spatial_dims=2, init_filters=8, in_channels=1, out_channels=4), images(32, 1)


@entry("torch-geometric/gcn")
def _graph_convolution() -> Built:
    GCN = module("torch_geometric.nn").GCN

    edges = torch.randint(0, 64, (2, 256), generator=torch.Generator().manual_seed(0))
    model = GCN(16, 64, num_layers=4, out_channels=16)
    return model, lambda: {"x": torch.randn(64, 16), "edge_index": edges}


@entry("torch-geometric/gat")
def _graph_attention() -> Built:
    GAT = module("torch_geometric.nn").GAT

    edges = torch.randint(0, 64, (2, 256), generator=torch.Generator().manual_seed(0))
    model = GAT(16, 64, num_layers=4, out_channels=16)
    return model, lambda: {"x": torch.randn(64, 16), "edge_index": edges}


@entry("efficientnet-pytorch/b0")
def _efficientnet() -> Built:
    EfficientNet = module("efficientnet_pytorch").EfficientNet

    return EfficientNet.from_name("efficientnet-b0", num_classes=100), images(64)


@entry("perceiver-pytorch/perceiver")
def _perceiver() -> Built:
    Perceiver = module("perceiver_pytorch").Perceiver

    model = Perceiver(
        num_freq_bands=4, max_freq=10.0, depth=2, num_latents=16, latent_dim=64, num_classes=100,
        latent_heads=4, latent_dim_head=16, cross_dim_head=16, self_per_cross_attn=1,
    )  # fmt: skip
    return model, lambda: torch.randn(8, 16, 16, 3)


@entry("mlp-mixer-pytorch/mixer")
def _mixer() -> Built:
    MLPMixer = module("mlp_mixer_pytorch").MLPMixer

    options = {"image_size": 64, "channels": 3, "patch_size": 16, "dim": 64, "depth": 4}
    return MLPMixer(num_classes=100, **options), images(64)


@entry("g-mlp-pytorch/vision")
def _gated_mlp() -> Built:
    gMLPVision = module("g_mlp_pytorch").gMLPVision

    return gMLPVision(image_size=64, patch_size=16, num_classes=100, dim=64, depth=4), images(64)


@entry("performer-pytorch/lm")
def _performer() -> Built:
    PerformerLM = module("performer_pytorch").PerformerLM

    model = PerformerLM(num_tokens=200, max_seq_len=16, dim=64, depth=3, heads=4, causal=False)
    return model, lambda: tokens(200)


@entry("linformer/lm")
def _linformer() -> Built:
    LinformerLM = module("linformer").LinformerLM

    model = LinformerLM(num_tokens=200, dim=64, seq_len=16, depth=3, heads=4, k=8)
    return model, lambda: tokens(200)


@entry("neuraloperator/fno")
def _fourier() -> Built:
    FNO = module("neuralop.models").FNO

    model = FNO(n_modes=(8, 8), hidden_channels=16, in_channels=1, out_channels=1, n_layers=3)
    return model, images(32, 1)


@entry("siren-pytorch/siren")
def _siren() -> Built:
    SirenNet = module("siren_pytorch").SirenNet

    return SirenNet(2, 64, 3, num_layers=4), lambda: torch.rand(256, 2) * 2 - 1


@entry("diffusers/unet2d")
def _diffusers_unet() -> Built:
    UNet2DModel = module("diffusers").UNet2DModel

    model = UNet2DModel(
        sample_size=32, block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
    )  # fmt: skip
    make = images(32, batch=4)
    return model, lambda: {"sample": make(), "timestep": torch.tensor(10)}


@entry("mambapy/mamba")
def _mambapy() -> Built:
    Mamba = module("mambapy.mamba").Mamba
    MambaConfig = module("mambapy.mamba").MambaConfig

    return Mamba(MambaConfig(d_model=64, n_layers=3)), lambda: torch.randn(4, 16, 64)


@entry("segment-anything/encoder")
def _segment_anything() -> Built:
    ImageEncoderViT = module("segment_anything.modeling.image_encoder").ImageEncoderViT

    model = ImageEncoderViT(
        img_size=64, patch_size=8, embed_dim=64, depth=4, num_heads=4, out_chans=32, window_size=4,
        global_attn_indexes=(1, 3), use_rel_pos=True,
    )  # fmt: skip
    return model, images(64)


@entry("pretrainedmodels/se-resnet50")
def _pretrained_squeeze() -> Built:
    pretrainedmodels = module("pretrainedmodels")

    return pretrainedmodels.__dict__["se_resnet50"](num_classes=100, pretrained=None), images(
        224, batch=4
    )


# torch itself


@entry("torch/transformer")
def _torch_transformer() -> Built:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.TransformerEncoder(layer, 4), nn.Linear(64, 100))
    return model, lambda: torch.randn(8, 16, 32)


@entry("torch/lstm")
def _torch_lstm() -> Built:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(32, 64, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(128, 100)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(self.lstm(x)[0][:, -1])
            return output

    return Classifier(), lambda: torch.randn(16, 12, 32)


@entry("torch/silu-50")
def _deep_silu() -> Built:
    layers: list[nn.Module] = [nn.Linear(128, 128)]
    for _ in range(49):
        layers += [nn.SiLU(), nn.Linear(128, 128)]
    return nn.Sequential(*layers), lambda: torch.randn(256, 128)
