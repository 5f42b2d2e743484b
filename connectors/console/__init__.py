"""Shows the changelog in a web browser: what happened to a row, who did it, and the state of the service.

`changelog console` serves these pages. They read the changelog and change nothing. Every page is HTML that works
without scripts, except that new changes appear by themselves only with the script `static/console.js`. With the header
`Accept: application/json`, every address returns the data of its page as JSON.
"""
