"""Texts -> token ids -> batches: padded on the right, sorted by length, each of one corpus. No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mathneuro_export.calibration.corpus import Corpus
from mathneuro_export.calibration.template import parse_template
from mathneuro_export.errors import Error, UsageError
from mathneuro_export.models.names import one_line
from mathneuro_export.models.quiet import quiet
from mathneuro_export.models.targets import Note

AUTO_TOKENS = 4096
"""Padded tokens of a batch under `--batch-size auto`."""

CUT = 100
"""A text of more than CUT x max_length characters is cut there before it is tokenised (see `_ids`)."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The token ids of each text of a corpus, in its order, at most `max_length` each; an empty one is no sample run.

    `special_tokens` tells how special tokens came in: {"added_by": "tokenizer" | "chat template", "added": those that
    the tokenizer adds to any text}.
    """

    ids: tuple[tuple[int, ...], ...]
    truncated: int
    special_tokens: dict[str, Any]
    notes: tuple[Note, ...]

    @property
    def tokens(self) -> int:
        """All tokens that the model will see."""
        return sum(len(ids) for ids in self.ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """`samples` are numbers of texts in the corpus, `lengths` their tokens, ascending: the last is the padded one."""

    samples: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def padded(self) -> int:
        """Tokens of each row, pads included."""
        return self.lengths[-1]


def encode(corpus: Corpus, tokenizer: Any, max_length: int, chat_template: bool, rows: int) -> Encoded:
    """Tokenise a corpus for an embedding of `rows` rows.

    Raw: special tokens as the tokenizer adds them by itself. Chat: the last field of a template of several fields is
    the assistant's turn and what is before it the user's, any other text is one user turn; nothing is added beyond
    the chat template.
    Errors: `UsageError` for a bad `max_length` or a tokenizer without a chat template; `Error` for a corpus without a
    token, a token beyond the embedding (naming the sample), or a text the tokenizer or its template refuses.
    """
    if max_length < 1:
        raise UsageError(f"--max-length {max_length}: expected at least 1")
    if chat_template and not getattr(tokenizer, "chat_template", None):
        raise UsageError("--chat-template: the tokenizer has no chat template; use --raw")
    all_ids, truncated = [], 0
    with quiet():
        for number, text in enumerate(corpus.texts):
            where = f"{corpus.name} ({corpus.spec}), sample {number}"
            try:
                if chat_template:
                    text = tokenizer.apply_chat_template(_turns(corpus, number), tokenize=False)
                ids, cut = _ids(tokenizer, text, max_length, not chat_template)
            except Exception as error:  # anything: templates and tokenizers are the model's own programs
                raise Error(f"{where}: the tokenizer cannot take it: {one_line(error)}") from error
            if ids and not 0 <= min(ids) <= max(ids) < rows:
                odd = next(i for i in ids if not 0 <= i < rows)
                raise Error(
                    f"{where}: token id {odd} ({tokenizer.convert_ids_to_tokens(odd)!r}) is beyond the embedding of "
                    f"{rows} rows; use the tokenizer of this model, or leave the text out"
                )
            all_ids.append(ids)
            truncated += cut
    if not any(all_ids):
        raise Error(f"{corpus.name} ({corpus.spec}): no text of the corpus has a token; expected text")
    notes = _notes(corpus, all_ids, truncated, max_length)
    return Encoded(tuple(all_ids), truncated, _special_tokens(tokenizer, chat_template), notes)


def make_batches(ids: Sequence[Sequence[int]], batch_size: int | None) -> list[Batch]:
    """Batches over the samples that have tokens, sorted by (length, number); the same for ever from the lengths alone.

    `batch_size` None is auto: as many samples as keep samples x padded length within AUTO_TOKENS, at least one.
    Errors: `UsageError` for a batch size below 1.
    """
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}: expected auto or at least 1")
    return list(_batches(sorted((len(row), number) for number, row in enumerate(ids) if row), batch_size))


def batch_plan(batches: Sequence[Batch]) -> list[list[int]]:
    """[samples, padded length] of each batch, in order."""
    return [[len(batch.samples), batch.padded] for batch in batches]


def _batches(order: Sequence[tuple[int, int]], batch_size: int | None) -> Iterator[Batch]:
    start = 0
    for end in range(1, len(order) + 1):
        count = end - start + 1  # with the next sample
        full = count > batch_size if batch_size else end < len(order) and count * order[end][0] > AUTO_TOKENS
        if full or end == len(order):
            part = order[start:end]
            yield Batch(tuple(number for _, number in part), tuple(length for length, _ in part))
            start = end


def _ids(tokenizer: Any, text: str, max_length: int, add_special: bool) -> tuple[tuple[int, ...], bool]:
    """Token ids of a text, truncated on the right, and whether they were.

    A text far longer than needed is cut before: the same ids, as tokenizers work from left to right within words, but
    for a word that itself is longer than the cut. If the cut text is not longer than `max_length`, it counts whole.
    """
    head = text[: CUT * max_length]
    ids = tokenizer(head, add_special_tokens=add_special, verbose=False)["input_ids"]
    if len(head) < len(text) and len(ids) <= max_length:
        head = text
        ids = tokenizer(head, add_special_tokens=add_special, verbose=False)["input_ids"]
    if len(ids) <= max_length:
        return tuple(ids), False
    if add_special:  # again, as the tokenizer may put a special token at the end
        options = {"truncation": True, "max_length": max_length, "verbose": False}
        ids = tokenizer(head, **options)["input_ids"]
    return tuple(ids[:max_length]), True


def _special_tokens(tokenizer: Any, chat_template: bool) -> dict[str, Any]:
    if chat_template:
        return {"added_by": "chat template", "added": []}
    return {"added_by": "tokenizer", "added": tokenizer.convert_ids_to_tokens(tokenizer("")["input_ids"])}


def _turns(corpus: Corpus, number: int) -> list[dict[str, str]]:
    text, start = corpus.texts[number], corpus.answers[number]
    if corpus.template is None or len(parse_template(corpus.template).fields) < 2:
        return [{"role": "user", "content": text}]
    question, answer = text[:start].strip(), text[start:].strip()
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _notes(corpus: Corpus, ids: Sequence[Sequence[int]], truncated: int, max_length: int) -> tuple[Note, ...]:
    notes, count = [], len(ids)
    if truncated > 0.01 * count:
        message = f"{corpus.name}: {truncated} of {count} samples were cut to {max_length} tokens; see --max-length"
        details = {"corpus": corpus.name, "count": truncated, "samples": count, "max_length": max_length}
        notes.append(Note("truncated", message, details))
    empty = sum(not row for row in ids)
    if empty:
        message = f"{corpus.name}: {empty} of {count} samples have no token and add nothing"
        notes.append(Note("empty-samples", message, {"corpus": corpus.name, "count": empty, "samples": count}))
    return tuple(notes)
