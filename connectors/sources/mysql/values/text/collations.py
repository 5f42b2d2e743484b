"""Lists the character set of each collation that is built into MySQL or MariaDB, by the collation's id in the binary
log.
"""

from collections.abc import Iterator, Mapping

_NO_PAD = 1024  # how much higher MariaDB's id is for the same collation if it does not ignore spaces at the end

_IDS = {
    "armscii8": "32 64",
    "ascii": "11 65",
    "big5": "1 84",
    "binary": "63",
    "cp1250": "26 34 44 66 99",
    "cp1251": "14 23 50-52",
    "cp1256": "57 67",
    "cp1257": "29 58-59",
    "cp850": "4 80",
    "cp852": "40 81",
    "cp866": "36 68",
    "cp932": "95-96",
    "dec8": "3 69",
    "eucjpms": "97-98",
    "euckr": "19 85",
    "gb18030": "248-250",
    "gb2312": "24 86",
    "gbk": "28 87",
    "geostd8": "92-93",
    "greek": "25 70",
    "hebrew": "16 71",
    "hp8": "6 72",
    "keybcs2": "37 73",
    "koi8r": "7 74",
    "koi8u": "22 75",
    "latin1": "5 8 15 31 47-49 94",
    "latin2": "2 9 21 27 77",
    "latin5": "30 78",
    "latin7": "20 41-42 79",
    "macce": "38 43",
    "macroman": "39 53",
    "sjis": "13 88",
    "swe7": "10 82",
    "tis620": "18 89",
    "ucs2": "35 90 128-151 159 640-642 2560-2815",
    "ujis": "12 91",
    "utf16": "54-55 101-124 672-674 2816-3071",
    "utf16le": "56 62",
    "utf32": "60-61 160-183 736-738 3072-3327",
    "utf8mb3": "33 76 83 192-215 223 576-579 2048-2303",
    "utf8mb4": "45-46 224-247 255-323 608-611 2304-2559",
}


def charset_name(collation: int, others: Mapping[int, str]) -> str | None:
    """Returns the name of the character set of a collation; None if the collation is not known.

    `others` maps ids of collations to the names of their character sets, as the server lists them. It is searched
    first.
    """
    return others.get(collation) or _BUILT_IN.get(collation)


def _built_in() -> Iterator[tuple[int, str]]:
    for name, ids in _IDS.items():
        for part in ids.split():
            first, _, last = part.partition("-")
            for collation in range(int(first), int(last or first) + 1):
                yield collation, name
                if collation < _NO_PAD:
                    yield collation + _NO_PAD, name


_BUILT_IN = dict(_built_in())
