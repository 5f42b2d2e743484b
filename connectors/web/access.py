"""Decides who may open an application: everybody who can connect or, if there is a token, only those who send it.

A program sends the token in each request (`Authorization: Bearer TOKEN`). A person enters the token once, in the form
of `/login`, and the browser then has a cookie. The cookie contains the time at which it expires, and an HMAC of this
time under a secret that only this process knows. So the cookie does not contain the token, and is invalid after a
restart.
"""

import hashlib
import hmac
from collections.abc import Callable

SESSION_S = 12 * 3600
"""How long a person stays logged in, in seconds."""

_SCHEME = "bearer "


class Access:
    """Checks tokens and cookies. Without a `token`, everybody is admitted.

    `secret` is a random secret of this process, `clock` returns seconds since 1970, and `cookie` is the cookie's name.
    """

    def __init__(self, token: str | None, *, secret: bytes, clock: Callable[[], float], cookie: str) -> None:
        self._digest = None if token is None else _digest(token)
        self._secret, self._clock = secret, clock
        self.cookie = cookie

    @property
    def needs_token(self) -> bool:
        """Whether a client needs a token."""
        return self._digest is not None

    def admits(self, *, authorization: str, cookie: str) -> bool:
        """Returns whether a request has the token in its header, or the cookie of a session that has not ended."""
        if self._digest is None:
            return True
        if has_token(authorization):
            return self.is_token(authorization[len(_SCHEME) :].strip())
        return self._is_session(cookie)

    def is_token(self, text: str) -> bool:
        """Returns whether `text` is the token. The comparison takes the same time for every wrong text."""
        return self._digest is not None and hmac.compare_digest(_digest(text), self._digest)

    def session(self) -> str:
        """Returns the value of the cookie of a new session."""
        return self._signed(int(self._clock()) + SESSION_S)

    def _is_session(self, value: str) -> bool:
        end = value.partition(".")[0]
        if not (end.isascii() and end.isdecimal() and len(end) <= 12):
            return False
        is_ours = hmac.compare_digest(value.encode(), self._signed(int(end)).encode())
        return is_ours and int(end) > self._clock()

    def _signed(self, end_s: int) -> str:
        return f"{end_s}.{hmac.digest(self._secret, b'%d' % end_s, 'sha256').hex()}"


def has_token(authorization: str) -> bool:
    """Returns whether the header `Authorization` holds a token, right or wrong."""
    return authorization[: len(_SCHEME)].lower() == _SCHEME


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
