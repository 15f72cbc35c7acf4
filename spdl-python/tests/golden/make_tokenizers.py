"""Writes `tokenizers/`: three tokenizers, and the ids that the Python package `tokenizers` makes with them.

    python -m venv venv && venv/bin/pip install tokenizers && venv/bin/python make_tokenizers.py
"""

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).with_name("tokenizers")
TEXTS = [
    "The cats sat on the mats, and the rats sat on the cats.",
    "Straße, naïve café — déjà vu! ÀÉÎÕÜ",
    "猫が窓辺で寝ている。今日は天気がいい。",
    "Кошка спит на окне; собака лает.",
    "القطة تنام على النافذة",
    "👩‍👩‍👧 and 🤖 like 🍣 and 🇪🇸!",
    "  two  spaces\tand\nlines\r\n",
    "numbers 123 4567 89.5 it's we'll DON'T",
    "<s> is not [SEP] here",
    "",
]


def tokenizers():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>"]
    yield "bpe", bpe, trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    word = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    word.normalizer = normalizers.BertNormalizer()
    word.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    yield "wordpiece", word, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special)
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.NFKC()
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>"]
    trainer = trainers.UnigramTrainer(vocab_size=160, special_tokens=special, unk_token="<unk>")
    yield "unigram", unigram, trainer


FOLDER.mkdir(exist_ok=True)
ids = {}
for name, tokenizer, trainer in tokenizers():
    trainer.show_progress = False
    tokenizer.train_from_iterator(TEXTS[:8] * 3, trainer)
    if name == "wordpiece":
        parts = [("[CLS]", tokenizer.token_to_id("[CLS]")), ("[SEP]", tokenizer.token_to_id("[SEP]"))]
        tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, parts)
        # Settings that the field ignores.
        tokenizer.enable_padding(length=64)
    tokenizer.save(str(FOLDER / f"{name}.json"), pretty=False)
    tokenizer.no_padding()
    one = ids[name] = {}
    one["ids"] = [tokenizer.encode(text).ids for text in TEXTS]
    one["plain"] = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    tokenizer.enable_truncation(6)
    one["truncated"] = [tokenizer.encode(text).ids for text in TEXTS]
(FOLDER / "ids.json").write_text(json.dumps({"texts": TEXTS, **ids}, ensure_ascii=False))
