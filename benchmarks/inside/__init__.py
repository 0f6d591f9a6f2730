"""What no user imports: the measurements that take distlock_web's own way to Redis apart."""
