"""From what a decoder hears to pieces of the changelog."""
