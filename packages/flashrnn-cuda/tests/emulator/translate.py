"""From CUDA to C++ that g++ takes: inline PTX becomes calls of functions, which cuda.h declares. All else stays as it is."""

from __future__ import annotations

import re
from typing import NamedTuple

ASM = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
PREDICATE, LABEL = re.compile(r"\.reg \.pred (\w+)"), re.compile(r"(\w+):\s+(.*)")
BRANCH = re.compile(r"@(!?)(\w+) bra (\w+)")
OPERAND = re.compile(r"%?\w+")
SHARED = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[\];")


class Section(NamedTuple):
    """What stands between two colons of an asm statement."""

    strings: list[str]
    expressions: list[str]


def translated(text: str) -> str:
    """The text of a kernel or a header: calls for inline PTX, and a pointer for the array that all of a CTA shares."""
    pieces, start = [], 0
    for match in ASM.finditer(text):
        end = closing(text, match.end())
        pieces += [text[start : match.start()], statement(text[match.end() : end])]
        start = end + 1
    text = "".join([*pieces, text[start:]])
    return SHARED.sub(r"\1* const \2 = reinterpret_cast<\1*>(emulator::shared_memory());", text)


def closing(text: str, start: int) -> int:
    """Where the parenthesis closes that was opened before `start`."""
    depth, i = 1, start
    while True:
        string = STRING.match(text, i)
        i = string.end() if string else i
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
        i += 1


def sections(text: str) -> list[Section]:
    """Those of what stands in the parentheses of an asm statement: instructions, outputs, inputs, clobbers."""
    found, i = [Section([], [])], 0
    while i < len(text):
        if string := STRING.match(text, i):
            found[-1].strings.append(string[1])
            i = string.end()
        elif text[i] == "(":
            end = closing(text, i + 1)
            found[-1].expressions.append(text[i : end + 1])
            i = end + 1
        else:
            if text[i] == ":":
                found.append(Section([], []))
            i += 1
    return found


def statement(text: str) -> str:
    """The calls for the instructions of an asm statement."""
    instructions, *operands = sections(text)
    given = [expression for section in operands for expression in section.expressions]
    code = "".join(instructions.strings).replace("\\n", " ").strip().strip("{}")
    calls = [call(instruction.strip(), given) for instruction in code.split(";") if instruction.strip()]
    return calls[0] if len(calls) == 1 else "{ " + " ".join(f"{x};" for x in calls) + " }"


def call(instruction: str, given: list[str]) -> str:
    """One instruction in C++."""
    if match := PREDICATE.fullmatch(instruction):
        return f"bool {match[1]}"
    if match := LABEL.fullmatch(instruction):
        return f"{match[1]}: {call(match[2], given)}"
    if match := BRANCH.fullmatch(instruction):
        return f"if ({match[1]}{match[2]}) goto {match[3]}"
    mnemonic, _, rest = instruction.partition(" ")
    operands = [given[int(x[1:])] if x.startswith("%") else x for x in OPERAND.findall(rest) if x != "_"]
    return f"ptx::{re.sub('[.:]+', '_', mnemonic)}({', '.join(operands)})"
