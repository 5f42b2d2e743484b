"""Reads many small transactions of the usual form together. `transactions` defines what a transaction means."""
