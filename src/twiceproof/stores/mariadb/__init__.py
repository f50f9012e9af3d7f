"""Records in MariaDB."""
