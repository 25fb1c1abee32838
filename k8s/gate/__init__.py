"""The checks of `k8s/validate.py`. A check gets rendered manifests and yields one verdict per
object it checked."""
