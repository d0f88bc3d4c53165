"""Clients that ask the model real questions the whole time, and notice every answer that is not one."""

import threading
from collections import Counter
from dataclasses import dataclass, field

import openai
from openai.types.chat import ChatCompletionMessageParam

QUESTIONS = (
    "What is the capital of France?",
    "Name a fruit.",
    "What is two plus two?",
    "What colour is the sky?",
    "Name an animal that flies.",
    "What do bees make?",
)
SYSTEM = "Answer in at most five words."
MAX_TOKENS = 48


@dataclass
class Clients:
    """`count` threads, each asking one question after another, every other one streamed.

    Raises nothing: what goes wrong is counted and kept in `problems`.
    """

    gateway: str
    model: str
    count: int
    answered: int = 0
    failed: int = 0
    arms: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for number in range(self.count):
            thread = threading.Thread(target=self._ask_on, args=(number,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Lets each finish the answer it is reading."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, number: int) -> None:
        client = openai.OpenAI(base_url=f"{self.gateway}/v1", api_key="none", max_retries=0, timeout=120)
        turn = number
        while not self._stop.is_set():
            try:
                arm, problem = self._ask(client, QUESTIONS[turn % len(QUESTIONS)], streamed=turn % 2 == 0)
            except openai.OpenAIError as error:
                arm, problem = "none", f"{type(error).__name__}: {error}"
            turn += 1
            with self._lock:
                self.answered += 1
                self.arms[arm] += 1
                if problem:
                    self.failed += 1
                    self.problems.append(problem)

    def _ask(self, client: openai.OpenAI, question: str, *, streamed: bool) -> tuple[str, str]:
        """The arm that answered, and what was wrong with the answer."""
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question},
        ]
        create = client.chat.completions.with_raw_response.create
        text, finish, name = "", None, self.model
        if streamed:
            stream = create(model=self.model, messages=messages, max_tokens=MAX_TOKENS, stream=True)
            arm = stream.headers.get("x-llmgw-arm", "none")
            for chunk in stream.parse():
                name = chunk.model
                text += chunk.choices[0].delta.content or ""
                finish = chunk.choices[0].finish_reason or finish
        else:
            whole = create(model=self.model, messages=messages, max_tokens=MAX_TOKENS)
            arm = whole.headers.get("x-llmgw-arm", "none")
            completion = whole.parse()
            name = completion.model
            text = completion.choices[0].message.content or ""
            finish = completion.choices[0].finish_reason
        if name != self.model:
            return arm, f"the answer says it is from {name}"
        if finish not in ("stop", "length"):
            return arm, f"the answer ended with {finish}"
        return arm, "" if text else "the answer is empty"
