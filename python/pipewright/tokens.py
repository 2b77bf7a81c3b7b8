"""A text as tokens of a model of transformers, in a file that the data set `text` reads (docs/data.md)."""
from __future__ import annotations

import dataclasses
import os
import sys

from pipewright.documents import Document
from pipewright.errors import Error

PIECE_CHARACTERS = 1 << 20  # that are tokenized at a time


@dataclasses.dataclass(frozen=True)
class Tokens(Document):
    """The document of `pipewright tokenize --json`."""
    file: str
    format: str  #: "bytes", "uint16" or "uint32", little-endian
    vocabulary: int
    tokens: int


def is_saved(name: str) -> bool:
    """Whether transformers has weights of that name, instead of a type of configuration: a folder that happens to have a type's name is none."""
    return "/" in name or os.path.isfile(os.path.join(name, "config.json"))


def tokenize(name: str, text: str, output: str) -> Tokens:
    """Writes `output` with the tokenizer of `name`, a folder or a name of transformers that is in its local cache; where it has none there, a
    token is a byte, and the text is the file. Nothing is fetched. Error where the text cannot be read."""
    try:
        import transformers
    except ImportError:
        raise Error("transformers cannot be imported", "pip install transformers") from None
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception:  # of many kinds
        tokenizer = None
    # Where there are no files of one, some classes make one that knows its special tokens only.
    if tokenizer is None or len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        print(f"pipewright: no tokenizer of '{name}' is here, so a token is a byte", file=sys.stderr)
        return Tokens(text, "bytes", 256, os.path.getsize(text))
    import numpy

    vocabulary = len(tokenizer)
    kind, word = ("uint16", "<u2") if vocabulary <= 1 << 16 else ("uint32", "<u4")
    count = 0
    try:
        with open(text, encoding="utf-8") as lines, open(output, "wb") as file:
            while piece := lines.read(PIECE_CHARACTERS):
                piece += lines.readline()
                numbers = numpy.asarray(tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"], dtype=word)
                numbers.tofile(file)
                count += len(numbers)
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"{text} cannot be tokenized: {error}", "It has to be UTF-8, and the output's folder has to be there.") from None
    return Tokens(output, kind, vocabulary, count)
