"""What happens outside: performed, and looked for."""
