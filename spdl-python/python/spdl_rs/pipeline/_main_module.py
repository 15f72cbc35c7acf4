"""What another process does not find in the program's main module, and what to do about it."""

from __future__ import annotations

START_UNDER_GUARD = 'a script must start processes under `if __name__ == "__main__":`'


def with_advice(error: AttributeError) -> AttributeError:
    """What pickle raises where something is not defined here, with advice where that was to be in the
    main module."""
    words = str(error)
    if "__main__" not in words and "__mp_main__" not in words:
        return error
    # By this name `multiprocessing` imports the program, if it has a file.
    if "__mp_main__" in words:
        why = (
            "this process has imported the program without what stands under "
            '`if __name__ == "__main__":`; define functions and classes above that, or in a module'
        )
    else:
        why = (
            "this process cannot import a program that is no file: a notebook, a prompt, python -c; "
            "define functions and classes in a module, and import it"
        )
    return AttributeError(f"{words}: {why}")
