"""An agent that speaks OpenAI's API: only its base URL changes.

pip install openai
python openai_sdk.py http://127.0.0.1:8000
"""

import sys

from openai import OpenAI

HISTORY = "You see a desk 1 and a shelf 1. Your task is to: find the mug."


def main(url: str, *, api_key: str = "none") -> None:
    """Ask once for a whole reply, and once for a stream."""
    client = OpenAI(base_url=f"{url}/v1", api_key=api_key)
    model = client.models.list().data[0].id
    completion = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": HISTORY}], extra_body={"qguide": {"num_candidates": 5}}
    )
    print(completion.choices[0].message.content)
    stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": HISTORY}], stream=True)
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(sys.argv[1])
