"""Asks eddy's merge, through the example merge_objects."""

import base64
import subprocess


def ask(program, lines):
    """For each list of values the answers: what they are together, or one value as it is read and written again."""
    text = "".join(f"{at} {' '.join(base64.b64encode(value).decode() for value in values)}\n" for at, values in enumerate(lines))
    done = subprocess.run([program], input=text.encode(), capture_output=True, timeout=600)
    if done.returncode:
        raise AssertionError(f"{program}: {done.stderr.decode()[-400:]}")
    answers = [line.split()[1:] for line in done.stdout.decode().splitlines()]
    if len(answers) != len(lines):
        raise AssertionError(f"{len(answers)} answers to {len(lines)} questions")
    return [[None if word == "-" else base64.b64decode(word) for word in words] for words in answers]
