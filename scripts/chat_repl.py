#!/usr/bin/env python3
"""Talks to an OpenAI-compatible server, in the terminal.

  chat_repl.py URL MODEL

An empty line or Ctrl-D ends it.
"""
import sys

import openai


def main():
    url, model = sys.argv[1:3]
    client = openai.OpenAI(base_url=url, api_key="none")
    print(f"{model}. An empty line ends the conversation.")
    messages = []
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            break
        if not line:
            break
        messages.append({"role": "user", "content": line})
        text = ""
        try:
            stream = client.chat.completions.create(
                model=model, messages=messages, stream=True, max_tokens=300,
                temperature=0)
            for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    text += chunk.choices[0].delta.content
                    print(chunk.choices[0].delta.content, end="", flush=True)
            print()
        except KeyboardInterrupt:  # what was said so far is kept
            print(" ..")
        except openai.OpenAIError as error:
            print(f"chat_repl.py: {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": text})


if __name__ == "__main__":
    main()
