"""Lists where the character sets of MySQL and MariaDB differ from the codecs of Python.

MySQL and MariaDB convert texts in the same way. `tests/integration/mysql/test_charsets.py` compares these tables with a
server, character by character, and prints what is wrong in them. Compatibility ideographs are written as escapes here,
because editors may normalise them.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Differences(NamedTuple):
    """A Python codec, and the characters that the servers convert differently.

    A run is a series of consecutive characters of the set. Each key of `runs` has the bytes of a run's first character.
    Its value has, in order, what the servers convert the characters of the run to: `?` for each that Unicode lacks.
    """

    codec: str
    runs: Mapping[bytes, str]


_USER_DEFINED = {
    b"\xf5\xa1": "".join(map(chr, range(0xE000, 0xE3AC))),
    b"\x8f\xf5\xa1": "".join(map(chr, range(0xE3AC, 0xE758))),
}

SINGLE_BYTE: Mapping[str, Differences] = {
    "armscii8": Differences(
        "latin1",
        {b"\xa1": "❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"},
    ),
    "ascii": Differences("ascii", {}),
    "cp1250": Differences("cp1250", {}),
    "cp1251": Differences("cp1251", {}),
    "cp1256": Differences(
        "cp1256",
        {
            b"\x8a": "?",
            b"\x8f": "?",
            b"\x98": "?",
            b"\x9a": "?",
            b"\x9f": "?",
            b"\xaa": "?",
            b"\xc0": "?",
            b"\xff": "?",
        },
    ),
    "cp1257": Differences("cp1257", {}),
    "cp850": Differences("cp850", {}),
    "cp852": Differences("cp852", {}),
    "cp866": Differences("cp866", {b"\xfc": "ⁿ²"}),
    "dec8": Differences(
        "latin1",
        {
            b"\xa4": "?",
            b"\xa6": "?",
            b"\xa8": "¤",
            b"\xac": "????",
            b"\xb4": "?",
            b"\xb8": "?",
            b"\xbe": "?",
            b"\xd0": "?",
            b"\xd7": "Œ",
            b"\xdd": "Ÿ?",
            b"\xf0": "?",
            b"\xf7": "œ",
            b"\xfd": "ÿ??",
        },
    ),
    "geostd8": Differences(
        "cp1252",
        {
            b"\x83": "?",
            b"\x88": "?",
            b"\x8a": "?",
            b"\x8c": "?",
            b"\x8e": "?",
            b"\x98": "???",
            b"\x9c": "?",
            b"\x9e": "??",
            b"\xc0": "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ???????????????????????№??",
        },
    ),
    "greek": Differences("iso8859-7", {b"\xa1": "ʽʼ", b"\xa4": "??", b"\xaa": "?"}),
    "hebrew": Differences("iso8859-8", {b"\xaf": "‾"}),
    "hp8": Differences("hp-roman8", {}),
    "keybcs2": Differences(
        "cp437",
        {
            b"\x80": "Č",
            b"\x83": "ď",
            b"\x85": "ĎŤčěĚĹÍľĺ",
            b"\x8f": "Á",
            b"\x91": "žŽ",
            b"\x95": "ÓůÚý",
            b"\x9b": "ŠĽÝŘť",
            b"\xa4": "ňŇŮÔšřŕŔ",
        },
    ),
    "koi8r": Differences("koi8-r", {}),
    "koi8u": Differences("koi8-u", {b"\x95": "•"}),
    "latin1": Differences("cp1252", {b"\x81": "\x81", b"\x8d": "\x8d", b"\x8f": "\x8f\x90", b"\x9d": "\x9d"}),
    "latin2": Differences("iso8859-2", {}),
    "latin5": Differences("iso8859-9", {}),
    "latin7": Differences("iso8859-13", {}),
    "macce": Differences("mac-latin2", {}),
    "macroman": Differences("mac-roman", {}),
    "swe7": Differences("ascii", {b"\x40": "É", b"\x5b": "ÄÖÅÜ", b"\x60": "é", b"\x7b": "äöåü?"}),
    "tis620": Differences(
        "tis-620", {b"\xa0": "\ufffd", b"\xdb": "\ufffd\ufffd\ufffd\ufffd", b"\xfc": "\ufffd\ufffd\ufffd\ufffd"}
    ),
}
"""Character sets with one byte for each character."""

MULTI_BYTE: Mapping[str, Differences] = {
    "big5": Differences(
        "big5",
        {
            b"\xa1\x5a": "\ufffd",
            b"\xa1\xc3": "\ufffd",
            b"\xa1\xc5": "\ufffd",
            b"\xa1\xfe": "\ufffd",
            b"\xa2\x40": "\ufffd",
            b"\xa2\xcc": "\ufffd",
            b"\xa2\xce": "\ufffd",
            b"\xf9\xd6": "碁銹裏墻恒粧嫺",
        },
    ),
    "cp932": Differences("cp932", {}),
    "eucjpms": Differences(
        "euc_jp",
        {
            b"\xa1\xc1": "～",
            b"\xa1\xc2": "∥",
            b"\xa1\xdd": "－",
            b"\xa1\xf1": "￠￡",
            b"\xa2\xcc": "￢",
            b"\xad\xa1": "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ",
            b"\xad\xc0": "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡",
            b"\xad\xdf": "㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪",
            b"\x8f\xa2\xb7": "～",
            b"\x8f\xa2\xc3": "￤",
            b"\x8f\xf3\xf3": (
                "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11德悅愠敎昻晥"
                "\ufa12\uf929栁\ufa13\ufa14橫櫢淸淲瀨\ufa15\ufa16甁皂皞\ufa17礰\ufa18\ufa19\ufa1a"
                "\ufa1b竧\ufa1c\ufa1d綠緖\ufa1e荢\ufa1f薰\ufa20\ufa21蠇\ufa22譿賴赶\ufa23\ufa24"
                "\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29霻靍靑\ufa2a\ufa2b\ufa2c馞髙魲\ufa2d黑"
            ),
            **_USER_DEFINED,
        },
    ),
    "euckr": Differences("cp949", {}),
    "gb18030": Differences("gb18030", {b"\xa8\xbc": "\u1e3f", b"\x81\x35\xf4\x37": "\ue7c7"}),
    "gb2312": Differences("gb2312", {}),
    "gbk": Differences("gbk", {}),
    "sjis": Differences("shift_jis", {b"\x81\x5f": "\\"}),
    "ujis": Differences("euc_jp", {b"\xa1\xc0": "\\", **_USER_DEFINED}),
}
"""Character sets with up to four bytes for each character, and one byte for each character of ASCII."""
