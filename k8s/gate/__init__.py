"""What `k8s/validate.py` checks. A check takes rendered manifests and yields one verdict per thing
it looked at."""
