"""Shows the changelog in a web browser: what happened to a row, who did it, and the state of the service.

`changelog console` serves these pages. They read the changelog and change nothing. Every page is HTML that works
without scripts. The script `static/console.js` makes new changes appear by themselves. With the header
`Accept: application/json`, every address returns the data of its page as JSON.
"""
