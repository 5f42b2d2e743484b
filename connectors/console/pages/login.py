"""`/login`: lets a person enter the token once, and gives the browser a cookie."""

import asyncio
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response

from changelog.connectors.console.rendering import Page, problem, respond
from changelog.connectors.web.access import SESSION_S, Access

FORM_BYTES_MAX = 4096
FIELDS_MAX = 8

FORM_S = 10.0
"""How long a browser may take to send the form, in seconds."""


class Login:
    """Answers `/login`. `access` checks the token, and `name` is the name of the service."""

    def __init__(self, access: Access, name: str) -> None:
        self._access, self._name = access, name

    async def login(self, request: Request) -> Response:
        """Shows the form, or checks a token that the form sent. If the token is right, sets a cookie and redirects."""
        if request.method != "POST":
            return self.form(request, request.query_params.get("next", "/"), status=HTTPStatus.OK)
        try:
            async with asyncio.timeout(FORM_S):
                form = await self._posted(request)
        except TimeoutError:
            page = problem(HTTPStatus.REQUEST_TIMEOUT, "The form took too long to arrive.")
            return respond(request, page, self._name)
        if form is None:
            page = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The form is too long.")
            return respond(request, page, self._name)
        following = form.get("next", "/")
        if not self._access.is_token(form.get("token", "")):
            return self.form(request, following, status=HTTPStatus.UNAUTHORIZED, is_wrong=True)
        answer = RedirectResponse(_local(following), HTTPStatus.SEE_OTHER)
        answer.set_cookie(
            self._access.cookie,
            self._access.session(),
            max_age=SESSION_S,
            path="/",
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    def form(self, request: HTTPConnection, following: str, *, status: HTTPStatus, is_wrong: bool = False) -> Response:
        """Returns the form. After the login, the browser goes to the page `following`.

        `is_wrong` says that a wrong token was sent.
        """
        data = {"next": _local(following), "is_wrong": is_wrong, "needs_token": self._access.needs_token}
        return respond(request, Page(template="login.html", title="Log in", data=data, status=status), self._name)

    @staticmethod
    async def _posted(request: Request) -> dict[str, str] | None:
        """Returns the fields of the form, None if it is too long."""
        content = b""
        async for chunk in request.stream():
            content += chunk
            if len(content) > FORM_BYTES_MAX:
                return None
        try:
            fields = parse_qs(content.decode("latin-1"), max_num_fields=FIELDS_MAX)
        except ValueError:  # too many fields
            return None
        return {name: values[0] for name, values in fields.items()}


def _local(address: str) -> str:
    """Returns the address if it is a page of the console, otherwise that of the first page."""
    is_ours = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if is_ours else "/"
