"""Fault tests: F1 to F24, on real stores and with real processes, each with a control.

python -m tests.faults                    everything, and the results written to docs/proof.md
python -m tests.faults --quick            a tenth of it
python -m tests.faults --only F9 --seed 7 one fault, with the same dice
"""
