"""Flows written in YAML files: parsed with places, checked, and compiled to the flows that Python code declares."""
