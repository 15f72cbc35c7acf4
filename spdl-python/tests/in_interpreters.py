"""Functions that tests run in subinterpreters. This module imports nothing."""


def double(number):
    return number * 2


def count_down(number):
    while number:
        yield number
        number -= 1


def refuse(item):
    raise LookupError(f"no {item!r}")
