"""What tests run in other interpreters of this process: a module that imports nothing."""


def double(number):
    return number * 2


def count_down(number):
    while number:
        yield number
        number -= 1


def refuse(item):
    raise LookupError(f"no {item!r}")
