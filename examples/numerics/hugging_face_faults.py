"""Train as hugging_face.py does, with a planted fault in the model: `--fault NAME` and the options of that script."""

import argparse
import sys

import hugging_face

LAYER = 1
"""The layer with the fault, if it is in a single layer."""


def norm_epsilon(model):
    """A configuration with 1e-5 where the model was trained with 1e-6."""
    model.base_model.layers[LAYER].post_attention_layernorm.variance_epsilon = 1e-5


def rope_bfloat16(model):
    """Angles of the rotary embedding in bfloat16, as `model.to(torch.bfloat16)` makes them."""
    rotary = model.base_model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.bfloat16()


def attention_scale(model):
    """Scores that are not divided by the root of the width of a head."""
    model.base_model.layers[LAYER].self_attn.scaling = 1.0


def mlp_sign(model):
    """The output of an MLP subtracted from the residual stream instead of added."""
    model.base_model.layers[LAYER].mlp.register_forward_hook(lambda module, inputs, output: -output)


def rotation_sign(model):
    """Queries and keys rotated by the opposite angles in all layers."""
    model.base_model.rotary_emb.register_forward_hook(lambda module, inputs, output: (output[0], -output[1]))


def mean_of_means(model):
    """The mean of each micro-batch's mean loss, whatever its number of tokens."""
    forward = model.forward

    def forward_with_mean(inputs, labels, num_items_in_batch):
        output = forward(inputs, labels=labels)
        output.loss = output.loss * len(inputs) / hugging_face.SAMPLES
        return output

    model.forward = forward_with_mean


def router_weights(model):
    """Weights of the chosen experts that do not sum to one."""
    router = model.base_model.layers[LAYER].mlp.gate
    router.register_forward_hook(lambda module, inputs, output: (output[0], output[1] * 0.5, output[2]))


FAULTS = (norm_epsilon, rope_bfloat16, attention_scale, mlp_sign, rotation_sign, mean_of_means, router_weights)


def main():
    parser = argparse.ArgumentParser()
    faults = {fault.__name__.replace("_", "-"): fault for fault in FAULTS}
    parser.add_argument("--fault", choices=faults, required=True)
    options, others = parser.parse_known_args()
    from_config = hugging_face.AutoModelForCausalLM.from_config

    def from_config_with_fault(*args, **kwargs):
        model = from_config(*args, **kwargs)
        faults[options.fault](model)
        return model

    hugging_face.AutoModelForCausalLM.from_config = from_config_with_fault
    sys.argv[1:] = others
    hugging_face.main()


if __name__ == "__main__":
    main()
