"""Real tokenizers made in the test: byte-level BPE, trained on a few lines, with the chat templates of known families."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "THOUGHT: I look at the file first.\n\n```bash\ncat -n solution.py\n```",
    "<returncode>0</returncode>\n<output>\ndef clamp(value, low, high):\n    return max(low, min(value, high))\n</output>",
    "sed -i 's/old/new/' path/file.py && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
] * 20

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# SmolLM2: ChatML that brings a system message of its own where none is given
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Llama 3: contents are trimmed, no newline between messages
LLAMA = (
    "<|begin_of_text|>{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# Mistral: roles must alternate, users in [INST], answers end with </s>
MISTRAL = (
    "<s>{% for message in messages %}"
    "{% if message['role'] != 'system' and (message['role'] == 'user') != ((loop.index0 - (1 if messages[0]['role'] == 'system' "
    "else 0)) % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] }}</s>"
    "{% elif message['role'] == 'user' %}[INST] {{ message['content'] }}[/INST]"
    "{% else %}[SYSTEM_PROMPT]{{ message['content'] }}[/SYSTEM_PROMPT]{% endif %}{% endfor %}"
)
# Qwen3: thinking is taken out of earlier answers
QWEN3 = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and '</think>' in message['content'] and not loop.last %}"
    "{{ message['content'].split('</think>')[-1].lstrip('\n') }}{% else %}{{ message['content'] }}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# DeepSeek-R1 and QwQ: as above, and the generation prompt opens the thinking itself
QWQ = QWEN3.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")

TEMPLATES = {"chatml": CHATML, "smollm2": SMOLLM2, "llama": LLAMA, "mistral": MISTRAL, "qwen3": QWEN3, "qwq": QWQ}
SPECIALS = [
    *["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"],
    *["<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"],
]


def build_tokenizer(template: str = "chatml", vocab_size: int = 400) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with one of TEMPLATES (or a template text)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=SPECIALS, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": SPECIALS})
    fast.chat_template = TEMPLATES.get(template, template)
    return fast
