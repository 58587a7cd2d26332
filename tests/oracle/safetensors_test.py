"""Files of the pip package `safetensors` through our reader and writer, and back: every bit must be the same."""

import json
import struct

import common
import numpy
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
SHAPES = [(), (1,), (0,), (7,), (3, 0, 5), (2, 3), (1, 1, 1, 1), (5, 3, 7), (3, 257)]


def any_bits(shape, dtype, seed):
    """Random bits, so that NaNs with payloads, infinities and subnormal numbers are among them; booleans are 0 or 1."""
    count = int(numpy.prod(shape))
    rng = numpy.random.default_rng(seed)
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, count).astype(bool)).reshape(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    data = rng.integers(0, 256, count * dtype.itemsize, dtype=numpy.uint8)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def header(path):
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


class Safetensors(common.OracleTest):
    def rewritten(self, tensors, metadata=None):
        """The package writes a file, we rewrite it, the package reads ours."""
        theirs, ours = self.folder / "theirs.safetensors", self.folder / "ours.safetensors"
        save_file(tensors, theirs, metadata=metadata)
        self.probe("rewrite", theirs, ours)
        return load_file(ours), header(ours)

    def check_same(self, tensors, metadata=None):
        result, entries = self.rewritten(tensors, metadata)
        self.assertEqual(entries.pop("__metadata__", None), metadata)
        self.assertEqual(sorted(entries), sorted(tensors))
        for name, tensor in tensors.items():
            with self.subTest(tensor=name):
                self.assertEqual(result[name].dtype, tensor.dtype)
                self.assertEqual(result[name].shape, tensor.shape)
                self.assertEqual(bits(result[name]), bits(tensor))

    def test_every_dtype_in_every_shape(self):
        for seed, (name, dtype) in enumerate(DTYPES.items()):
            with self.subTest(dtype=name):
                self.check_same({f"{name}.{shape}": any_bits(shape, dtype, seed) for shape in SHAPES})

    def test_all_dtypes_in_one_file(self):
        self.check_same(
            {f"t.{i}": any_bits((i % 4, 3, 1 + i % 5), dtype, i) for i, dtype in enumerate(DTYPES.values())}
        )

    def test_dtype_names(self):
        _, entries = self.rewritten({name: any_bits((3,), dtype, 1) for name, dtype in DTYPES.items()})
        self.assertEqual({name: entry["dtype"] for name, entry in entries.items()}, {name: name for name in DTYPES})

    def test_metadata(self):
        self.check_same(
            {"a": torch.ones(2)},
            {
                "format": "pt",
                "": "",
                'quote"\\': "line\nbreak\t\u0001",
                "unicode é 漢": "🙂\u0301",
                "long": "x" * 100_000,
            },
        )

    def test_names(self):
        names = ["", " ", "a.b.c", "a/b", "é漢🙂", 'with "quotes" \\ and \n', "x" * 5000, "__metadata", "0"]
        self.check_same({name: any_bits((i,), torch.float32, i) for i, name in enumerate(names)})

    def test_no_tensors(self):
        self.check_same({})
        self.check_same({}, {"only": "metadata"})

    def test_many_tensors(self):
        self.check_same({f"layers.{i}.weight": any_bits((i % 7, i % 3), torch.bfloat16, i) for i in range(3000)})

    def test_rewriting_is_the_identity_on_our_files(self):
        first, second = self.folder / "first.safetensors", self.folder / "second.safetensors"
        theirs = self.folder / "theirs.safetensors"
        save_file({f"t{i}": any_bits((3, i), dtype, i) for i, dtype in enumerate(DTYPES.values())}, theirs)
        self.probe("rewrite", theirs, first)
        self.probe("rewrite", first, second)
        self.assertEqual(first.read_bytes(), second.read_bytes())

    def test_the_package_maps_ours_in_place(self):
        """safe_open with slices, as loaders of large models use it."""
        tensor = any_bits((12, 5), torch.float32, 3)
        save_file({"a": any_bits((3,), torch.uint8, 1), "b": tensor}, self.folder / "theirs.safetensors")
        self.probe("rewrite", self.folder / "theirs.safetensors", self.folder / "ours.safetensors")
        with safe_open(self.folder / "ours.safetensors", framework="pt") as file:
            self.assertEqual(sorted(file.keys()), ["a", "b"])
            self.assertEqual(bits(file.get_slice("b")[2:7]), bits(tensor[2:7]))


if __name__ == "__main__":
    common.main()
