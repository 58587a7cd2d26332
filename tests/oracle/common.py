"""What the oracle tests share: our programs, the tolerance on logits, and how a test file is run."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    TRANSFORMERS_VERBOSITY="error",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",
)

DATA = pathlib.Path(os.environ["ORACLE_DATA"])
SKIPPED = 77  # as tests/oracle/CMakeLists.txt tells CTest


def needs_data(*parts):
    """Decorator: skips, saying so, where ../shared/data does not have this file."""
    path = DATA.joinpath(*parts)
    return unittest.skipUnless(path.exists(), f"{path} is not there")


class OracleTest(unittest.TestCase):
    """A folder of its own, and our programs."""

    maxDiff = 2000

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tensorcache_oracle.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def probe(self, *arguments):
        self._run(os.environ["ORACLE_PROBE"], *arguments)

    def tensorcache(self, *arguments):
        return self._run(os.environ["ORACLE_PROGRAM"], *arguments)

    def tensorcache_error(self, *arguments):
        """The message of a command that must fail in good order."""
        done = self._start(os.environ["ORACLE_PROGRAM"], *arguments)
        self.assertIn(done.returncode, range(1, 126), f"{done.args}: {done.returncode}\n{done.stderr}")
        return done.stderr

    def probe_json(self, command, subject, argument, **options):
        """`argument` goes in and the result comes out as JSON."""
        source, result = self.folder / "probe_in.json", self.folder / "probe_out.json"
        source.write_text(json.dumps(argument))
        self.probe(command, subject, source, result, *_flags(options))
        return json.loads(result.read_text())

    def probe_logits(self, model, tokens, **options):
        """float32 (tokens, vocabulary)"""
        from safetensors.numpy import load_file

        source, result = self.folder / "probe_in.json", self.folder / "probe_out.safetensors"
        source.write_text(json.dumps(tokens))
        self.probe("logits", model, source, result, *_flags(options))
        return load_file(result)["logits"]

    def _run(self, *command):
        done = self._start(*command)
        self.assertEqual(done.returncode, 0, f"{' '.join(done.args)}\n{done.stdout}{done.stderr}")
        return done.stdout

    @staticmethod
    def _start(*command):
        return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def _flags(options):
    return [word for name, value in options.items() for word in (f"--{name}", value)]


def main():
    """unittest.main, but a file whose every test was skipped says so to CTest."""
    program = unittest.main(verbosity=2, exit=False)
    result = program.result
    if result.wasSuccessful() and result.testsRun > 0 and len(result.skipped) == result.testsRun:
        sys.exit(SKIPPED)
    sys.exit(0 if result.wasSuccessful() and result.testsRun > 0 else 1)
