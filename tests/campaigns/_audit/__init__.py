"""An oracle that shares no code with the product: triggers write down every change, `test_decoding` says in which
order the transactions were committed, and docs/reference/types.md says how values look.
"""
