"""A user's own flow, played again and again in private: killed, paused, repeated, and compared with one clean run."""
