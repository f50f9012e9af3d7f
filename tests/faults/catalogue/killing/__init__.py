"""Workers killed at named boundaries of the ledger: scenes, the points in them, and rounds of kills."""
