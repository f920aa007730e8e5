#!/usr/bin/env python3
"""Input filter of Doxygen: prints the text that Doxygen reads in place of a file. usage: filter.py FILE

Copies, moves, destructors and the declaration of what is private to the library mean in every class
the same, so they have no comments and are left out; so is the attribute of the namespace. Lines of
a comment that begin with a label, such as Errors, become items of a list. Links of a page that leave tools/docs become
plain text, because what they lead to is not part of the site.
"""
import pathlib
import re
import sys

NAME = r"[A-Z]\w*"
LEFT_OUT = (
    rf"{NAME}\((?:const )?({NAME})&&?(?: \w+)?\)(?: noexcept)?(?: = \w+)?;",  # X(X&&)
    rf"{NAME}& operator=\((?:const )?{NAME}&&?(?: \w+)?\)(?: noexcept)?(?: = \w+)?;",
    rf"~{NAME}\(\)(?: = \w+)?;",
    r"struct Impl;(?:  ///< incomplete outside the library)?",
    rf"explicit {NAME}\(std::(?:unique|shared)_ptr<(?:const )?Impl> impl\) noexcept;",
    r"(?:const )?Impl& impl\(\) (?:const )?noexcept \{ return \*impl_; \}",
    r"friend class \w+;",
)
LINE = re.compile(rf"^\s*(?:{'|'.join(LEFT_OUT)})\s*$")
# Labels of a comment, such as Shapes, Errors and Threads, become a list.
LABEL = re.compile(r"^(\s*/// )(Shapes|Units|Aliasing|Errors|Threads|Accuracy|Source|Cost|Rows|Bits|Positions|"
                   r"Policies|Sharing|Growth|Memory|Handles|Structs|Numbers|Norms|Rotation|Groups|lse)\s+(?=\S)")
LINK_OUT = re.compile(r"\[([^\]]+)\]\(\.\./[^)]+\)")
ONLY_INSIDE = "/// For other rooms of this library only: incomplete outside it."


def main(path: str) -> None:
    text = pathlib.Path(path).read_text(encoding="utf-8")
    if path.endswith(".h"):
        lines = ["" if LINE.match(line) or line.strip() == ONLY_INSIDE else line
                 for line in text.split("\n")]
        lines = [LABEL.sub(r"\1- **\2** ", line) for line in lines]
        text = "\n".join(lines).replace("namespace MANYHEAD_API manyhead", "namespace manyhead")
    else:
        text = LINK_OUT.sub(r"\1", text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main(sys.argv[1])
