"""Records in etcd."""
